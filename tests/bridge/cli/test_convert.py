"""Convert and inspect of checkpoints."""

from dataclasses import replace

import chex
import numpy as np
import pytest
import torch
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.digests import record_files
from credit_jax.packages.arrays import write_grid, write_weights
from credit_jax.packages.manifest import Manifest
from credit_torch_bridge import to_torch
from credit_torch_bridge.checkpoint import convert_run
from credit_torch_bridge.checkpoint.jax_checkpoint import RunConfig, read_run, write_run
from tests.bridge import runs
from tests.data.world import GRID, raw_config, write_world
from tests.reference.training import GEN2_CONFIG

same = chex.assert_trees_all_equal


def weights_of(folder):
    return runs.read_torch(folder)["model_state_dict"]


def written_for_torch(checkpoint):
    return to_torch(runs.CONFIG, checkpoint)["checkpoint.pt"]["model_state_dict"]


@pytest.fixture
def run(checkpoint, tmp_path):
    """`run(settings, checkpoint, ...)` -> the folder of a run of credit_jax."""

    def write(settings, *checkpoints):
        run_config = RunConfig(runs.CONFIG).with_settings(settings)
        write_run(tmp_path / "run", run_config, checkpoints or [checkpoint])
        return tmp_path / "run"

    return write


def test_best_and_backup_become_checkpoints(
    bridge, credit_run_folder, jax_run, checkpoint, tmp_path
):
    log = (jax_run / "training_log.csv").read_text()
    assert log.startswith("index,epoch")
    store = CheckpointStore(jax_run)
    assert store.steps() == [20, 40, 60]
    progress = store.progress(60)
    assert (progress.epoch, progress.best_epoch, progress.best_step) == (3, 0, 20)
    assert progress.best_metric == 1.5
    assert store.best_step() == 20
    assert store.item_names(60) == ["weights", "ema", "optimizer", "loss_scale"]
    assert store.item_names(40) == ["weights", "optimizer", "loss_scale"]
    store.close()
    best = read_run(jax_run, runs.MODEL_DEF, 20)
    same(best.params, runs.earlier(checkpoint, 0).params)
    assert read_run(jax_run, runs.MODEL_DEF).loss_scale == runs.SCALER
    back = tmp_path / "torch"
    bridge.convert("torch", jax_run, back)
    for name in ("checkpoint.pt", "best_checkpoint.pt", "checkpoint_ema.pt"):
        ours, theirs = (
            runs.read_torch(each, name) for each in (back, credit_run_folder)
        )
        for key in theirs.keys() - {"epoch" if "ema" in name else ""}:
            runs.assert_same(ours[key], theirs[key], f"{name} {key}")


def test_the_coordinates_of_the_files_are_recorded(checkpoint, tmp_path):
    write_world(tmp_path)
    config = RunConfig(raw_config(tmp_path))
    conversion = convert_run.RunConversion(config, tmp_path, tmp_path / "out")
    found = conversion._located(checkpoint).progress.coordinates
    assert found["latitude"] == tuple(GRID["latitude"])
    assert found["sources"]["ERA5"]["levels"] == (1.0, 5.0)
    for path in tmp_path.glob("w_*.nc"):
        path.unlink()
    found = conversion._located(checkpoint)
    assert found.progress.coordinates is None
    assert "from them records them: data.source.ERA5" in found.notes[-1]


@pytest.mark.slow
def test_what_the_checkpoint_says_is_put_into_the_config(
    bridge, credit_run_folder, tmp_path
):
    trainer = {"weight_decay": (0.5, 0.0), "scheduler.total_steps": (7, 100)}
    changes = [f"trainer.{key}={change}" for key, (change, _) in trainer.items()]
    options = [word for change in changes for word in ("--set", change)]
    notes = [
        f"note: trainer.{k} is {stored} in the checkpoint"
        for k, (_, stored) in trainer.items()
    ]
    bridge.convert("jax", credit_run_folder, tmp_path / "jax", *options, says=notes)
    written = read_yaml(tmp_path / "jax" / "model.yml")
    assert written["trainer"]["weight_decay"] == 0.0
    assert written["trainer"]["scheduler"]["total_steps"] == 100
    assert written["save_loc"] == str(tmp_path / "jax")


@pytest.mark.slow
def test_a_run_stopped_in_an_epoch_on_a_mesh(bridge, run, checkpoint, tmp_path):
    parallel, out = {"data": "fsdp2", "tensor": 2, "domain": 2}, tmp_path / "torch"
    stopped = replace(checkpoint, progress=Progress(epoch=2, batches=5))
    settings = {"trainer.parallelism": parallel, "trainer.compile": True}
    says = [
        "stopped in epoch 3 after 5 batches; CREDIT counts whole epochs",
        "model.yml asks for tensor: 1 and domain: 1",
        "model.yml says compile: false",
    ]
    bridge.convert("torch", run(settings, stopped), out, says=says)
    trainer = read_yaml(out / "model.yml")["trainer"]
    assert trainer["parallelism"] == {"data": "fsdp2", "tensor": 1, "domain": 1}
    assert trainer["reload_epoch"] is trainer["load_optimizer"] is True
    assert trainer["compile"] is False
    content = runs.read_torch(out)
    assert content["epoch"] == 1
    assert "up_block4.2.bias" in content["optimizer_state_dict"]["state"]


def test_what_credit_cannot_express_is_refused_at_once(bridge, run, tmp_path):
    """Nothing is written, and the hint leads on."""
    out = tmp_path / "torch"
    given = "torch", run({"model.local_window_size": [2, 2, 2, 1]}), out
    words = "model.local_window_size: [2, 2, 2, 1]: CREDIT's"
    bridge.convert(*given, code=2, says=words)
    drop, words = ("--drop", "metrics.none"), "the config has no such key"
    bridge.convert(*given, *drop, code=2, says=words)
    window = "--set", "model.local_window_size=2"
    dates = "--set", "inference.single_forecast.start_datetime=2000-01-05"
    bridge.convert(*given, *window, *dates, says="credit rollout -c")
    inference = read_yaml(out / "model.yml")["inference"]
    assert inference["mode"] == "none"
    assert inference["save_forecast"] == str(out / "forecast"), "not that of the run"


@pytest.mark.slow
def test_weights_only_and_a_step(bridge, run, checkpoint, tmp_path):
    folder, out = run({}, runs.earlier(checkpoint, 0), checkpoint), tmp_path / "torch"
    bridge.convert("torch", folder, out, "--weights-only", "--step", 20)
    assert set(runs.read_torch(out)) == {"epoch", "model_state_dict"}
    trainer = read_yaml(out / "model.yml")["trainer"]
    assert (trainer["load_weights"], trainer["load_optimizer"]) == (True, False)
    given = "torch", folder, tmp_path / "no"
    bridge.convert(*given, "--step", 21, code=2, says="no checkpoint 21")
    words = "has no adapters (trainer.finetune.lora)"
    bridge.convert(*given, "--merge", code=2, says=words)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["average", "last"])
def test_one_kind_of_weights_alone(bridge, run, checkpoint, tmp_path, weights):
    params, label = {
        "average": (checkpoint.ema, "moving average"),
        "last": (checkpoint.params, "last weights"),
    }[weights]
    out, chosen = tmp_path / "torch", ("--weights", weights)
    bridge.convert("torch", run({}), out, *chosen, says=f"weights: {label}\n")
    assert set(runs.read_torch(out)) == {"epoch", "model_state_dict"}
    assert not (out / "checkpoint_ema.pt").exists()
    alone = replace(checkpoint, params=params, moments=None, ema=None)
    runs.assert_same(weights_of(out), written_for_torch(alone))
    # Both ways: what has no average any more cannot give it.
    given, words = ("jax", out), "has no moving average"
    bridge.convert(*given, tmp_path / "no", "--weights", "average", code=2, says=words)
    bridge.convert(*given, tmp_path / "back", "--weights", "last")
    back = read_run(tmp_path / "back", runs.MODEL_DEF)
    same(back.params, params)
    assert back.ema is back.moments is None


def test_a_package_goes_both_ways(bridge, checkpoint, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    weights = checkpoint.params, checkpoint.model_state
    write_weights(package / "weights.safetensors", runs.MODEL_DEF, *weights)
    config = {"model": runs.CONFIG["model"], "data": {"source": {}}}
    (package / "model.yml").write_text(yaml.safe_dump(config))
    (package / "channels.json").write_text('{"input": [], "output": []}')
    (package / "README.md").write_text("A model.\n")
    write_grid(package / "grid.nc", np.arange(3.0), np.arange(4.0))
    files = record_files(package)
    Manifest("wxformer", 60, False, "0" * 64, "CREDIT", files).write(package)
    bridge.convert("torch", package, tmp_path / "torch")
    runs.assert_same(weights_of(tmp_path / "torch"), written_for_torch(checkpoint))
    bridge.convert("jax", package, tmp_path / "run")
    back = read_run(tmp_path / "run", runs.MODEL_DEF)
    same((back.params, back.model_state), weights)
    (package / "weights.safetensors").write_bytes(b"")
    bridge.convert("jax", package, tmp_path / "no", code=2, says="SHA-256")


def test_a_config_of_generation_1_gives_weights(bridge, credit_run_folder, tmp_path):
    old, out = tmp_path / "old.yml", tmp_path / "jax"
    trainer = {"type": "era5", "mode": "fsdp"}
    old.write_text(yaml.safe_dump(runs.CONFIG | {"trainer": trainer, "data": {}}))
    given = "jax", credit_run_folder, out, "--config", old
    bridge.convert(*given, code=2, says="is of CREDIT's generation 1")
    words = "training will not take this config as it is"
    bridge.convert(*given, "--weights-only", says=words)


@pytest.mark.slow
def test_a_disk_that_fails_leaves_nothing(
    bridge, credit_run_folder, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_run, "write_run", full)
    given = "jax", credit_run_folder, tmp_path / "jax"
    bridge.convert(*given, code=2, says="No space left")
    assert not [*tmp_path.iterdir()]


def test_inspect_reads_both_sides(bridge, credit_run_folder, jax_run, tmp_path):
    says = (
        "checkpoint of none or ddp",
        "besides: optimizer, schedule, loss scaling, average; epoch 2",
        "layers.0.0.convs.0.1.weight_u (4,) -> stages/0/embed/convs/0/kernel (u)",
    )
    text = bridge("inspect", "--checkpoint", credit_run_folder, says=says)
    assert text.endswith("every key has its place\n")
    weights = {f"module.{k}": v for k, v in weights_of(credit_run_folder).items()}
    weights["module.more"] = weights.pop("module.up_block4.2.bias")
    torch.save(weights, tmp_path / "file.pt")
    given = "inspect", "--checkpoint", tmp_path / "file.pt"
    bridge(*given, says="name it with --config")
    says = (
        "module.more (6,) [wrapper removed] -> not known",
        "missing: up_block4.2.bias (6,)\n  unexpected: more (6,)",
    )
    bridge(*given, "--config", GEN2_CONFIG, says=says)
    says = (
        "60 micro-batches: weights, ema, optimizer, loss_scale; epoch 4",
        "forecasts take the moving average",
    )
    bridge("inspect", "--checkpoint", jax_run, says=says)
    no = tmp_path / "no"
    bridge.convert("jax", jax_run, no, code=2, says="convert it with --to torch")
    absent = tmp_path / "absent"
    words = f"{absent}: no such file or folder"
    bridge.convert("jax", absent, no, code=2, says=words)
    bridge("compare", "--checkpoint", absent, code=2, says=words)
