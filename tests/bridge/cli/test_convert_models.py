"""Round trips of checkpoints of CREDIT's models through `convert`."""

import numpy as np
import pytest
import torch
import yaml

from credit_jax.cli.predict import main as predict
from credit_jax.models.registry import build
from credit_torch_bridge.compare.credit_side import call_network
from tests.bridge.checkpoint.formats import with_convolutions
from tests.bridge.runs import CONFIG, assert_same, read_torch
from tests.models.cases import CASES, NEXTGEN
from tests.models.graph.edges import write_edges
from tests.support.credit_modules import credit_attribute

pytestmark = pytest.mark.reference

GRAPH = {"type": "graph", "n_variables": 2, "n_static_variables": 2, "levels": 2}
GRAPH |= {"hidden_size": 8, "dim_head": 4, "n_blocks": 2}
BLOCKS = {
    "camulator": CASES["camulator two frames"].block,
    "crossformer-diffusion": CASES["diffusion v"].block,
    "unet-diffusion": CASES["unet-diffusion padded"].block,
    "crossformer_downscaling": CASES["crossformer_downscaling mirror"].block,
    "nextgen_wxformer": CASES["nextgen levels"].block,
    "crossformer-ensemble, frozen": CASES["ensemble frozen"].block,
    "crossformer-style": CASES["ensemble trained"].block,
    "debugger": CASES["debugger frames"].block,
    "graph": GRAPH,
    "swin": CASES["swin stages"].block,
    "unet_downscaling": {**CASES["unet downscaling"].block, "frames": 1},
    "wrf": CASES["region wrf"].block,
    "dscale": CASES["region dscale"].block,
}
# One model whose parameters are all trained, and one with frozen parameters.
GEN1 = ("camulator", "crossformer-ensemble, frozen")


def write_run(credit, block, folder):
    """Trains a model of CREDIT for one update; returns its checkpoint."""
    model = credit.build_credit(block, seed=2).train()
    trained = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = torch.optim.AdamW(trained, 1e-3, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    model_def = build(block)
    inputs = {
        name: torch.randn(spec.shape(1), generator=generator)
        for name, spec in model_def.inputs.items()
    }
    if model_def.process is None:
        loss = (call_network(model, inputs) ** 2).mean()
    else:
        y = torch.randn(model_def.output.shape(1), generator=generator)
        _, _, loss = model(y, inputs["x"])
    loss.backward()
    optimizer.step()
    content = {
        "epoch": 0,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": None,
        "scaler_state_dict": None,
    }
    folder.mkdir()
    torch.save(content, folder / "checkpoint.pt")
    trainer = CONFIG["trainer"] | {"use_scheduler": False, "use_ema": False}
    write_config(folder, CONFIG | {"model": block, "trainer": trainer})
    return content


def write_config(folder, config):
    (folder / "model.yml").write_text(yaml.safe_dump(config))


def there_and_back(bridge, folder, *options, says=(), name="checkpoint.pt"):
    """What CREDIT gets of its own run."""
    jax, back = folder / "jax", folder / "back"
    bridge.convert("jax", folder / "run", jax, *options, says=says)
    bridge.convert("torch", jax, back, *options)
    return read_torch(back, name)


@pytest.mark.slow(but=["crossformer-style", "debugger", "swin", "dscale"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_checkpoint_goes_both_ways(credit, bridge, tmp_path, name):
    """Weights, spectral-norm vectors and state of the optimizer."""
    block = BLOCKS[name]
    if name == "graph":
        block = block | {"edge_path": write_edges(tmp_path / "edges.nc", 6, 8, 5)}
    theirs = write_run(credit, block, tmp_path / "run")
    ours = there_and_back(bridge, tmp_path)
    assert_same({**ours["model_state_dict"]}, {**theirs["model_state_dict"]})
    states = [c["optimizer_state_dict"]["state"] for c in (ours, theirs)]
    assert states[0].keys() == states[1].keys(), "idle parameters have no state"
    for key, entry in states[1].items():
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(states[0][key][moment], entry[moment]), key


AVERAGED = {
    "statistics": {**CASES["unet tendency"].block, "rk4_integration": False},
    "tables of a process": CASES["unet-diffusion padded"].block,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGED)
def test_an_average_has_every_key_that_credit_averages(credit, bridge, tmp_path, name):
    """Also running statistics and tables, which a resumed CREDIT run averages, too."""
    block, folder = AVERAGED[name], tmp_path / "run"
    write_run(credit, block, folder)
    tracker = credit_attribute("trainers.base_trainer", "EMATracker")
    average = tracker(credit.build_credit(block, seed=3), 0.9)
    moved = credit.build_credit(block, seed=4)
    for key, buffer in moved.named_buffers():
        if "running" in key or "num_batches" in key:
            buffer.add_(3)
    average.update(moved)
    content = {"epoch": 0, "model_state_dict": average.state_dict()}
    torch.save(content, folder / "checkpoint_ema.pt")
    config = yaml.safe_load((folder / "model.yml").read_text())
    config["trainer"] |= {"use_ema": True, "ema_decay": 0.9}
    write_config(folder, config)
    ours = there_and_back(bridge, tmp_path, name="checkpoint_ema.pt")
    ours, shadow = ours["model_state_dict"]["shadow"], {**average.shadow}
    if name == "tables of a process":
        # Its constants come from the config.
        named = dict(credit.build_credit(block).named_parameters())
        shadow = {key: shadow[key] if key in named else ours[key] for key in shadow}
    assert_same({**ours}, shadow)
    assert all(ours[key].dtype == torch.float32 for key in ours)


@pytest.mark.slow
def test_predictions_of_a_model_with_noise(credit, bridge, tmp_path):
    """Each seed gives another member; equal seeds give equal predictions."""
    block, jax = CASES["ensemble frozen"].block, tmp_path / "jax"
    write_run(credit, block, tmp_path / "run")
    bridge.convert("jax", tmp_path / "run", jax)
    np.save(tmp_path / "x.npy", np.ones(build(block).inputs["x"].shape(1), "f4"))
    made = []
    for seed in (1, 1, 2):
        out = tmp_path / f"y{len(made)}.npy"
        options = ["--input", tmp_path / "x.npy", "--output", out, "--seed", seed]
        options += ["--config", jax / "model.yml", "--checkpoint", jax]
        assert predict([*map(str, options)]) == 0
        made.append(np.load(out))
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[0] - made[2]).max() > 0


@pytest.mark.slow(but=["camulator"])
@pytest.mark.parametrize("name", GEN1)
def test_a_run_of_generation_1_gives_weights(credit, bridge, tmp_path, name):
    theirs = write_run(credit, BLOCKS[name], tmp_path / "run")
    old = {"trainer": {"type": "era5", "mode": "ddp"}, "data": {}, "save_loc": "."}
    write_config(tmp_path / "run", old | {"model": BLOCKS[name]})
    ours = there_and_back(bridge, tmp_path, "--weights-only")
    assert_same({**ours["model_state_dict"]}, {**theirs["model_state_dict"]})


@pytest.mark.slow
# CREDIT 2026.2.0 has no wxformer_column.
@pytest.mark.parametrize("name", sorted(NEXTGEN.keys() - {"column"}))
def test_a_checkpoint_with_convolutions_is_read_as_credit_reads_it(
    credit, bridge, tmp_path, name
):
    run = tmp_path / "run"
    content = write_run(credit, NEXTGEN[name].block, run)
    old = with_convolutions(content["model_state_dict"])
    assert any(".to_qkv." in key for key in old)
    remap = "models.wxformer.wxformer_next", "remap_conv_state_dict"
    wanted = credit_attribute(*remap)(old)
    torch.save(content | {"model_state_dict": old}, run / "checkpoint.pt")
    bridge.convert("jax", run, tmp_path / "jax", code=2, says="give --weights-only")
    bridge("inspect", "--checkpoint", run, says="every key has its place")
    says = "note: the checkpoint is of the version with convolutions"
    ours = there_and_back(bridge, tmp_path, "--weights-only", says=says)
    ours = ours["model_state_dict"]
    assert ours.keys() == wanted.keys()
    assert_same({key: ours[key] for key in wanted}, {**wanted})
