"""Convert and inspect of checkpoints."""

from dataclasses import replace

import chex
import numpy as np
import pytest
import torch
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_torch_bridge import to_torch
from credit_torch_bridge.checkpoint.convert_run import RunConversion
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run, write_run
from credit_torch_bridge.checkpoint.run_config import RunConfig, read_run_config
from tests.bridge.cli.runs import CONFIG, MODEL_DEF, SCALER, earlier, write_package
from tests.data.world import GRID, raw_config, write_world
from tests.reference.training import GEN2_CONFIG


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
    best = read_run(out, MODEL_DEF, 20)
    np.testing.assert_array_equal(
        best.params["head/out/kernel"],
        earlier(checkpoint, 0).params["head/out/kernel"],
    )
    assert read_run(out, MODEL_DEF).loss_scale == SCALER

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


def test_the_coordinates_of_the_files_are_recorded(checkpoint, tmp_path):
    write_world(tmp_path)
    config = RunConfig(raw_config(tmp_path))
    conversion = RunConversion(config, tmp_path, tmp_path / "out")
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


@pytest.mark.slow
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


def test_what_credit_cannot_express_is_refused_at_once(bridge, checkpoint, tmp_path):
    """Nothing is written, and the hint leads on."""
    window = {"model.local_window_size": [2, 2, 2, 1]}
    run_config = RunConfig(CONFIG).with_settings(window)
    write_run(tmp_path / "run", run_config, [checkpoint])
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", *given)
    assert (code, "model.local_window_size: [2, 2, 2, 1]: CREDIT's" in text) == (
        2,
        True,
    )
    assert not (tmp_path / "torch").exists()
    code, text = bridge("convert", "--to", "torch", *given, "--drop", "metrics.none")
    assert (code, "the config has no such key" in text) == (2, True)
    window = "--set", "model.local_window_size=2"
    dates = "--set", "inference.single_forecast.start_datetime=2000-01-05"
    code, text = bridge("convert", "--to", "torch", *given, *window, *dates)
    assert code == 0, text
    assert "credit rollout -c" in text
    written = yaml.safe_load((tmp_path / "torch" / "model.yml").read_text())
    assert written["inference"]["mode"] == "none"
    # Not in the folder of the run.
    folder = str(tmp_path / "torch" / "forecast")
    assert written["inference"]["save_forecast"] == folder


@pytest.mark.slow
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
    given = "--checkpoint", tmp_path / "run", "--merge", "--out", tmp_path / "no"
    code, text = bridge("convert", "--to", "torch", *given)
    assert (code, "has no adapters (trainer.finetune.lora)" in text) == (2, True)
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["average", "last"])
def test_one_kind_of_weights_alone(bridge, checkpoint, tmp_path, weights):
    write_run(tmp_path / "run", read_run_config(CONFIG), [checkpoint])
    params = checkpoint.ema if weights == "average" else checkpoint.params
    label = "moving average" if weights == "average" else "last weights"
    chosen = "--weights", weights, "--checkpoint"
    to_torch_ = "convert", "--to", "torch", *chosen, tmp_path / "run"
    code, text = bridge(*to_torch_, "--out", tmp_path / "torch")
    assert code == 0, text
    assert f"weights: {label}\n" in text
    content = torch.load(tmp_path / "torch/checkpoint.pt", weights_only=True)
    assert set(content) == {"epoch", "model_state_dict"}
    assert not (tmp_path / "torch/checkpoint_ema.pt").exists()
    alone = replace(checkpoint, params=params, moments=None, ema=None)
    wanted = to_torch(CONFIG, alone)["checkpoint.pt"]["model_state_dict"]
    for key, tensor in content["model_state_dict"].items():
        assert torch.equal(tensor, wanted[key]), key
    # Both ways: what has no average any more cannot give it.
    to_jax = "convert", "--to", "jax", "--checkpoint", tmp_path / "torch", "--weights"
    code, text = bridge(*to_jax, "average", "--out", tmp_path / "no")
    assert (code, "has no moving average" in text) == (2, True)
    code, text = bridge(*to_jax, "last", "--out", tmp_path / "back")
    assert code == 0, text
    back = read_run(tmp_path / "back", MODEL_DEF)
    chex.assert_trees_all_equal(back.params, params)
    assert back.ema is None
    assert back.moments is None


def test_a_package_goes_both_ways(bridge, checkpoint, tmp_path):
    given = "--checkpoint", write_package(checkpoint, tmp_path / "package")
    code, text = bridge("convert", "--to", "torch", *given, "--out", tmp_path / "torch")
    assert code == 0, text
    content = torch.load(tmp_path / "torch/checkpoint.pt", weights_only=True)
    wanted = to_torch(CONFIG, checkpoint)["checkpoint.pt"]["model_state_dict"]
    assert list(content["model_state_dict"]) == list(wanted)
    for key, tensor in content["model_state_dict"].items():
        assert torch.equal(tensor, wanted[key]), key
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "run")
    assert code == 0, text
    back = read_run(tmp_path / "run", MODEL_DEF)
    chex.assert_trees_all_equal(back.params, checkpoint.params)
    chex.assert_trees_all_equal(back.model_state, checkpoint.model_state)
    (tmp_path / "package/weights.safetensors").write_bytes(b"")
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "no")
    assert (code, "SHA-256" in text) == (2, True)


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


@pytest.mark.slow
def test_a_disk_that_fails_leaves_nothing(
    bridge, credit_run_folder, tmp_path, monkeypatch
):
    from credit_torch_bridge.checkpoint import convert_run

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_run, "write_run", full)
    before = sorted(tmp_path.iterdir())
    given = "--checkpoint", credit_run_folder, "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert (code, "No space left" in text) == (2, True)
    assert sorted(tmp_path.iterdir()) == before


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
    assert "forecasts take the moving average" in text
    given = "--to", "jax", "--checkpoint", tmp_path / "jax", "--out", tmp_path / "no"
    code, text = bridge("convert", *given)
    assert (code, "convert it with --to torch" in text) == (2, True)


@pytest.mark.parametrize("command", ["compare", "convert"])
def test_a_checkpoint_that_is_missing_is_named(bridge, tmp_path, command):
    options = ["--to", "jax", "--out", tmp_path / "out"] if command == "convert" else []
    code, text = bridge(command, "--checkpoint", tmp_path / "absent", *options)
    assert (code, f"{tmp_path}/absent: no such file or folder" in text) == (2, True)
