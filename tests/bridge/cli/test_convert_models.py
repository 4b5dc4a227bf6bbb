"""Round trips of checkpoints of CREDIT's models through `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from credit_jax.cli.predict import main as predict
from credit_jax.models.registry import build
from credit_torch_bridge.compare.credit_side import call_network
from tests.bridge.checkpoint.formats import with_convolutions
from tests.bridge.cli.runs import CONFIG
from tests.models.cases import CASES, NEXTGEN
from tests.models.graph.edges import write_edges
from tests.support.credit_modules import credit_attribute

pytestmark = pytest.mark.reference

BLOCKS = {
    "camulator": CASES["camulator two frames"].block,
    "crossformer-diffusion": CASES["diffusion v"].block,
    "unet-diffusion": CASES["unet-diffusion padded"].block,
    "crossformer_downscaling": CASES["crossformer_downscaling mirror"].block,
    "nextgen_wxformer": CASES["nextgen levels"].block,
    "crossformer-ensemble, frozen": CASES["ensemble frozen"].block,
    "crossformer-style": CASES["ensemble trained"].block,
    "debugger": CASES["debugger frames"].block,
    "swin": CASES["swin stages"].block,
    "unet_downscaling": {**CASES["unet downscaling"].block, "frames": 1},
    "wrf": CASES["region wrf"].block,
    "dscale": CASES["region dscale"].block,
}

GRAPH = {
    "type": "graph",
    "n_variables": 2,
    "n_static_variables": 2,
    "levels": 2,
    "hidden_size": 8,
    "dim_head": 4,
    "n_blocks": 2,
}


# One model whose parameters are all trained, and one with frozen parameters.
GEN1 = ("camulator", "crossformer-ensemble, frozen")


def write_run(credit: Any, block: dict[str, Any], folder: Path) -> dict[str, Any]:
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
    config = CONFIG | {"model": block, "trainer": trainer}
    (folder / "model.yml").write_text(yaml.safe_dump(config))
    return content


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Asserts equal keys in the same order and equal bits."""
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key


@pytest.mark.slow(but=["crossformer-style", "debugger", "swin", "dscale"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_checkpoint_goes_both_ways(
    credit: Any, bridge: Any, tmp_path: Path, name: str
) -> None:
    assert_both_ways(credit, bridge, tmp_path, BLOCKS[name])


@pytest.mark.slow
def test_a_checkpoint_of_graph_goes_both_ways(
    credit: Any, bridge: Any, tmp_path: Path
) -> None:
    path = write_edges(tmp_path / "edges.nc", 6, 8, 5)
    assert_both_ways(credit, bridge, tmp_path, {**GRAPH, "edge_path": path})


def assert_both_ways(
    credit: Any, bridge: Any, tmp_path: Path, block: dict[str, Any]
) -> None:
    """Asserts round trips of weights, spectral-norm vectors and optimizer state."""
    theirs = write_run(credit, block, tmp_path / "run")
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == 0, text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == 0, text
    ours = torch.load(tmp_path / "back" / "checkpoint.pt", weights_only=True)
    assert_same(ours["model_state_dict"], theirs["model_state_dict"])
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
def test_an_average_has_every_key_that_credit_averages(
    credit: Any, bridge: Any, tmp_path: Path, name: str
) -> None:
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
    (folder / "model.yml").write_text(yaml.safe_dump(config))
    given = "--checkpoint", folder, "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == 0, text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == 0, text
    path = tmp_path / "back" / "checkpoint_ema.pt"
    ours = torch.load(path, weights_only=True)["model_state_dict"]["shadow"]
    assert list(ours) == list(average.shadow)
    if name == "tables of a process":
        # Its constants come from the config.
        named = dict(credit.build_credit(block).named_parameters())
        kept = average.shadow
        average.shadow = {key: ours[key] for key in kept} | {k: kept[k] for k in named}
    assert_same(ours, average.shadow)
    assert all(ours[key].dtype == torch.float32 for key in ours)


@pytest.mark.slow
def test_predictions_of_a_model_with_noise(
    credit: Any, bridge: Any, tmp_path: Path
) -> None:
    """Each seed gives another member; equal seeds give equal predictions."""
    block = CASES["ensemble frozen"].block
    write_run(credit, block, tmp_path / "run")
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "jax"
    assert bridge("convert", "--to", "jax", *given)[0] == 0
    np.save(tmp_path / "x.npy", np.ones(build(block).inputs["x"].shape(1), "f4"))
    made = []
    for seed in (1, 1, 2):
        out = tmp_path / f"y{len(made)}.npy"
        options = ["--input", tmp_path / "x.npy", "--output", out, "--seed", seed]
        run = ["--config", tmp_path / "jax/model.yml", "--checkpoint", tmp_path / "jax"]
        assert predict([str(word) for word in (*run, *options)]) == 0
        made.append(np.load(out))
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[0] - made[2]).max() > 0


@pytest.mark.slow(but=["camulator"])
@pytest.mark.parametrize("name", GEN1)
def test_a_run_of_generation_1_gives_weights(
    credit: Any, bridge: Any, tmp_path: Path, name: str
) -> None:
    theirs = write_run(credit, BLOCKS[name], tmp_path / "run")
    old = {
        "model": BLOCKS[name],
        "trainer": {"type": "era5", "mode": "ddp"},
        "data": {},
        "save_loc": ".",
    }
    (tmp_path / "run" / "model.yml").write_text(yaml.safe_dump(old))
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", "--weights-only", *given)
    assert code == 0, text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", "--weights-only", *given)
    assert code == 0, text
    ours = torch.load(tmp_path / "back" / "checkpoint.pt", weights_only=True)
    assert_same(ours["model_state_dict"], theirs["model_state_dict"])


@pytest.mark.slow
# CREDIT 2026.2.0 has no wxformer_column.
@pytest.mark.parametrize("name", sorted(NEXTGEN.keys() - {"column"}))
def test_a_checkpoint_with_convolutions_is_read_as_credit_reads_it(
    credit: Any, bridge: Any, tmp_path: Path, name: str
) -> None:
    block = NEXTGEN[name].block
    content = write_run(credit, block, tmp_path / "run")
    old = with_convolutions(content["model_state_dict"])
    assert any(".to_qkv." in key for key in old)
    wanted = credit_attribute("models.wxformer.wxformer_next", "remap_conv_state_dict")(
        old
    )
    torch.save(content | {"model_state_dict": old}, tmp_path / "run" / "checkpoint.pt")
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert (code, "give --weights-only" in text) == (2, True)
    code, text = bridge("convert", "--to", "jax", "--weights-only", *given)
    assert code == 0, text
    assert "note: the checkpoint is of the version with convolutions" in text
    code, text = bridge("inspect", "--checkpoint", tmp_path / "run")
    assert (code, "every key has its place" in text) == (0, True), text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", "--weights-only", *given)
    assert code == 0, text
    ours = torch.load(tmp_path / "back" / "checkpoint.pt", weights_only=True)
    ours = ours["model_state_dict"]
    assert ours.keys() == wanted.keys()
    assert_same({key: ours[key] for key in wanted}, wanted)
