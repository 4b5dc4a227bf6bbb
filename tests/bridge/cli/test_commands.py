"""The commands beyond one file: best and backup, notes, settings, and `inspect`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.models.registry import build
from credit_torch_bridge import JaxCheckpoint, Moments, to_torch
from credit_torch_bridge.checkpoint.orbax_run import read_run, write_run
from credit_torch_bridge.checkpoint.run_config import RunConfig, read_run_config
from tests.reference.training import GEN2_CONFIG

CONFIG = yaml.safe_load(GEN2_CONFIG.read_text())
ARCHITECTURE = build(CONFIG["model"])
SCALER = {
    "scale": 1024.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 17,
}


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {path: d.shape for path, d in ARCHITECTURE.param_specs.items()}
    return {path: rng.normal(size=s).astype("f4") for path, s in shapes.items()}


@pytest.fixture
def checkpoint(rng):
    """A checkpoint of epoch 2, 60 micro-batches."""
    from credit_jax.nn.spectral_norm import spectral_norm_shapes

    vectors = {
        path: {
            k: rng.normal(size=s).astype("f4")
            for k, s in spectral_norm_shapes(d).items()
        }
        for path, d in ARCHITECTURE.matrices.items()
    }
    return JaxCheckpoint(
        draw(1),
        {"spectral_norm": vectors, "batch_stats": {}},
        moments=Moments(draw(2), draw(3), 60),
        ema=draw(4),
        micro_step=60,
        update_step=60,
        progress=Progress(epoch=3),
        loss_scale=SCALER,
    )


def earlier(checkpoint, epoch):
    return replace(
        checkpoint,
        params=draw(10 + epoch),
        micro_step=20 * (epoch + 1),
        progress=Progress(epoch=epoch + 1),
    )


@pytest.fixture
def credit_run_folder(checkpoint, tmp_path):
    """The folder of a run of CREDIT: three epochs, the first was the best."""
    folder = tmp_path / "credit"
    folder.mkdir()
    files = {
        "": checkpoint,
        "best_": earlier(checkpoint, 0),
        "backup_": earlier(checkpoint, 1),
    }
    for prefix, content in files.items():
        written = to_torch(CONFIG, content)
        torch.save(written["checkpoint.pt"], folder / f"{prefix}checkpoint.pt")
    torch.save(
        written["checkpoint_ema.pt"] | {"epoch": 2}, folder / "checkpoint_ema.pt"
    )
    (folder / "model.yml").write_text(yaml.safe_dump(CONFIG))
    rows = (
        "index,epoch,train_loss,valid_loss\n0,0,3.0,1.5\n1,1,2.5,1.75\n2,2,2.0,1.625\n"
    )
    (folder / "training_log.csv").write_text(rows)
    return folder


def test_best_and_backup_become_checkpoints(
    bridge, credit_run_folder, tmp_path, checkpoint
):
    out = tmp_path / "jax"
    given = "--checkpoint", credit_run_folder, "--out", out
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == 0, text
    assert (out / "training_log.csv").read_text().startswith("index,epoch")
    store = CheckpointStore(out)
    assert store.steps() == [20, 40, 60]
    progress = store.progress(60)
    assert (progress.epoch, progress.best_epoch, progress.best_step) == (3, 0, 20)
    assert progress.best_metric == 1.5
    assert store.best_step() == 20
    assert store.item_names(60) == ["weights", "ema", "optimizer", "loss_scale"]
    assert store.item_names(40) == ["weights", "optimizer", "loss_scale"]
    store.close()
    best = read_run(out, ARCHITECTURE, 20)
    np.testing.assert_array_equal(
        best.params["head/out/kernel"],
        earlier(checkpoint, 0).params["head/out/kernel"],
    )
    assert read_run(out, ARCHITECTURE).loss_scale == SCALER

    back = tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", "--checkpoint", out, "--out", back)
    assert code == 0, text
    for name in ("checkpoint.pt", "best_checkpoint.pt"):
        ours = torch.load(back / name, weights_only=True)
        theirs = torch.load(credit_run_folder / name, weights_only=True)
        for key, tensor in theirs["model_state_dict"].items():
            assert torch.equal(ours["model_state_dict"][key], tensor), key
        for key in ("epoch", "scheduler_state_dict", "scaler_state_dict"):
            assert ours[key] == theirs[key]


def test_inspect_reads_both_sides(bridge, credit_run_folder, tmp_path):
    code, text = bridge("inspect", "--checkpoint", credit_run_folder)
    assert code == 0, text
    assert "checkpoint of none or ddp" in text
    assert "besides: optimizer, schedule, loss scaling, average; epoch 2" in text
    assert (
        "layers.0.0.convs.0.1.weight_u (4,) -> stages/0/embed/convs/0/kernel (u)"
        in text
    )
    assert text.endswith("every key has its place\n")
    state = torch.load(credit_run_folder / "checkpoint.pt", weights_only=True)
    weights = {f"module.{k}": v for k, v in state["model_state_dict"].items()}
    weights["module.more"] = weights.pop("module.up_block4.2.bias")
    torch.save(weights, tmp_path / "file.pt")
    code, text = bridge("inspect", "--checkpoint", tmp_path / "file.pt")
    assert (code, "name it with --config" in text) == (0, True)
    given = "--checkpoint", tmp_path / "file.pt", "--config", GEN2_CONFIG
    code, text = bridge("inspect", *given)
    assert code == 0, text
    assert "module.more (6,) [wrapper removed] -> not known" in text
    assert "missing: up_block4.2.bias (6,)\n  unexpected: more (6,)" in text
    bridge("convert", "--to", "jax", "--checkpoint", credit_run_folder,
           "--out", tmp_path / "jax")  # fmt: skip
    code, text = bridge("inspect", "--checkpoint", tmp_path / "jax")
    assert code == 0, text
    assert "60 micro-batches: weights, ema, optimizer, loss_scale; epoch 4" in text
    given = "--to", "jax", "--checkpoint", tmp_path / "jax", "--out", tmp_path / "no"
    code, text = bridge("convert", *given)
    assert (code, "convert it with --to torch" in text) == (2, True)


def test_what_the_checkpoint_says_is_put_into_the_config(
    bridge, credit_run_folder, tmp_path
):
    changes = "trainer.weight_decay=0.5", "trainer.scheduler.total_steps=7"
    overrides = [word for change in changes for word in ("--set", change)]
    given = "--checkpoint", credit_run_folder, "--out", tmp_path / "jax", *overrides
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == 0, text
    assert "note: trainer.weight_decay is 0.0 in the checkpoint" in text
    assert "note: trainer.scheduler.total_steps is 100 in the checkpoint" in text
    written = yaml.safe_load((tmp_path / "jax" / "model.yml").read_text())
    assert written["trainer"]["weight_decay"] == 0.0
    assert written["trainer"]["scheduler"]["total_steps"] == 100
    assert written["save_loc"] == str(tmp_path / "jax")


def test_a_run_stopped_in_an_epoch_on_a_mesh(bridge, checkpoint, tmp_path):
    parallel = {"data": "fsdp2", "tensor": 2, "domain": 2}
    run_config = RunConfig(CONFIG).with_settings({"trainer.parallelism": parallel})
    run_config = run_config.with_settings({"trainer.compile": True})
    stopped = replace(checkpoint, progress=Progress(epoch=2, batches=5))
    write_run(tmp_path / "run", run_config, [stopped])
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == 0, text
    assert "stopped in epoch 3 after 5 batches; CREDIT counts whole epochs" in text
    assert "model.yml asks for tensor: 1 and domain: 1" in text
    written = yaml.safe_load((tmp_path / "torch" / "model.yml").read_text())
    trainer = written["trainer"]
    assert trainer["parallelism"] == {"data": "fsdp2", "tensor": 1, "domain": 1}
    assert trainer["reload_epoch"] is trainer["load_optimizer"] is True
    assert trainer["compile"] is False
    assert "model.yml says compile: false" in text
    content = torch.load(tmp_path / "torch" / "checkpoint.pt", weights_only=True)
    assert content["epoch"] == 1
    assert "up_block4.2.bias" in content["optimizer_state_dict"]["state"]


def test_weights_only_and_a_step(bridge, checkpoint, tmp_path):
    run_config = read_run_config(CONFIG)
    write_run(tmp_path / "run", run_config, [earlier(checkpoint, 0), checkpoint])
    given = "--checkpoint", tmp_path / "run", "--weights-only", "--step", 20
    out = tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", *given, "--out", out)
    assert code == 0, text
    content = torch.load(out / "checkpoint.pt", weights_only=True)
    assert set(content) == {"epoch", "model_state_dict"}
    trainer = yaml.safe_load((out / "model.yml").read_text())["trainer"]
    assert (trainer["load_weights"], trainer["load_optimizer"]) == (True, False)
    given = "--checkpoint", tmp_path / "run", "--step", 21, "--out", tmp_path / "no"
    code, text = bridge("convert", "--to", "torch", *given)
    assert (code, "no checkpoint 21" in text) == (2, True)
    assert not (tmp_path / "no").exists()


def test_a_config_of_generation_1_gives_weights(bridge, credit_run_folder, tmp_path):
    old = CONFIG | {"trainer": {"type": "era5", "mode": "fsdp"}, "data": {}}
    (tmp_path / "old.yml").write_text(yaml.safe_dump(old))
    given = "--config", tmp_path / "old.yml", "--checkpoint", credit_run_folder
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "jax")
    assert (code, "is of CREDIT's generation 1" in text) == (2, True)
    given += "--weights-only", "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == 0, text
    assert "training will not take this config as it is" in text


def test_a_disk_that_fails_leaves_nothing(
    bridge, credit_run_folder, tmp_path, monkeypatch
):
    from credit_torch_bridge.cli import convert

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert, "write_run", full)
    before = sorted(tmp_path.iterdir())
    given = "--checkpoint", credit_run_folder, "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert (code, "No space left" in text) == (2, True)
    assert sorted(tmp_path.iterdir()) == before
