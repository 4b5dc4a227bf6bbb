"""Every format of CREDIT gives the same checkpoint, and round-trips bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
import torch

from credit_jax.checkpoint import LOSS, CheckpointStore, PlateauState, Progress
from credit_jax.models.conversion import key_map_for
from credit_jax.packages.package import open_artifact, restore
from credit_jax.plan.finetune import find_base
from credit_torch_bridge import Moments, from_torch, to_torch
from credit_torch_bridge.checkpoint.jax_checkpoint import items_of, read_run, write_run
from credit_torch_bridge.checkpoint.jax_to_torch import cautions
from credit_torch_bridge.checkpoint.run_config import read_run_config
from tests.bridge.checkpoint.formats import AVERAGE, BARE, MAIN, WHOLE, by_name, load
from tests.bridge.cli.conftest import checkpoint, credit_run_folder
from tests.bridge.cli.runs import CONFIG, MODEL_DEF, draw_checkpoint

__all__ = ["checkpoint", "credit_run_folder"]


@pytest.fixture
def write(credit, credit_folder, model_config, tmp_path):
    def write_it(format_):
        model = credit.build_credit(model_config["model"])
        return format_(credit_folder, tmp_path, model)

    return write_it


@pytest.fixture(scope="session")
def reference(credit_folder, model_config):
    return from_torch(model_config, credit_folder)


def assert_equal(actual, expected, what="content"):
    """Asserts equal structure, types, dtypes, bits and order of keys."""
    assert type(actual) is type(expected), what
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, what
        assert torch.equal(actual, expected), what
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), what
        for key, value in expected.items():
            assert_equal(actual[key], value, f"{what}.{key}")
    else:
        assert actual == expected, what


def same(actual, expected):
    chex.assert_trees_all_equal(actual, expected)


@pytest.mark.reference
@pytest.mark.slow(but=["none", "fsdp2", "domain", "module."])
@pytest.mark.parametrize("name", WHOLE)
def test_everything_comes_back_bitwise(
    write, reference, credit_folder, model_config, name
):
    checkpoint = from_torch(model_config, write(WHOLE[name]))
    same(checkpoint.params, reference.params)
    same(checkpoint.model_state, reference.model_state)
    same(checkpoint.ema, reference.ema)
    same(vars(checkpoint.moments), vars(reference.moments))
    places = [
        (s.micro_step, s.update_step, s.settings) for s in (checkpoint, reference)
    ]
    assert places[0] == places[1] == (20, 20, {})
    assert checkpoint.progress.epoch == 1
    files = to_torch(model_config, checkpoint)
    assert set(files) == {MAIN, AVERAGE}
    for file, content in files.items():
        assert_equal(content, load(credit_folder, file), file)


@pytest.mark.reference
def test_fsdp2_comes_back_by_name(write, credit_folder, model_config):
    config = model_config | {
        "trainer": model_config["trainer"]
        | {"parallelism": {"data": "fsdp2", "tensor": 1, "domain": 1}}
    }
    checkpoint = from_torch(config, write(WHOLE["fsdp2"]))
    assert_equal(to_torch(config, checkpoint)[MAIN], by_name(load(credit_folder)))


@pytest.mark.reference
@pytest.mark.parametrize("name", BARE)
def test_weights_alone(write, reference, model_config, name):
    checkpoint = from_torch(model_config, write(BARE[name]))
    same(checkpoint.params, reference.params)
    same(checkpoint.model_state, reference.model_state)
    assert checkpoint.moments is None
    assert checkpoint.ema is None


@pytest.mark.reference
def test_an_average_by_itself_takes_the_vectors_beside_it(
    write, reference, model_config, tmp_path
):
    folder = write(WHOLE["none"])
    checkpoint = from_torch(model_config, folder / AVERAGE)
    same(checkpoint.params, reference.ema)
    same(checkpoint.model_state, reference.model_state)
    (folder / MAIN).unlink()
    with pytest.raises(ValueError, match="an average has no vectors of spectral norm"):
        from_torch(model_config, folder / AVERAGE)


@pytest.mark.reference
def test_averaged_vectors_of_old_files_are_left_out(
    write, reference, model_config, credit_folder
):
    folder = write(WHOLE["none"])
    content = load(folder, AVERAGE)
    stored = load(folder)["model_state_dict"]
    shadow = {k: v for k, v in stored.items() if k.endswith(("_u", "_v"))}
    content["model_state_dict"]["shadow"] |= shadow
    torch.save(content, folder / AVERAGE)
    same(from_torch(model_config, folder).ema, reference.ema)


@pytest.mark.reference
def test_half_precision_is_widened(write, reference, model_config, tmp_path):
    state = {
        key: value.to(torch.bfloat16)
        for key, value in load(write(WHOLE["none"]))["model_state_dict"].items()
    }
    torch.save(state, tmp_path / "half.pt")
    checkpoint = from_torch(model_config, tmp_path / "half.pt")
    path = "head/out/kernel"
    assert checkpoint.params[path].dtype == np.float32
    np.testing.assert_array_equal(
        checkpoint.params[path],
        torch.from_numpy(reference.params[path]).to(torch.bfloat16).float().numpy(),
    )


@pytest.mark.parametrize("name", ["", "checkpoint.pt"])
@pytest.mark.parametrize("weights", [None, "last"])
def test_a_file_and_a_folder(
    credit_run_folder: Path, checkpoint: Any, name: str, weights: str | None
) -> None:
    base = open_artifact(find_base(credit_run_folder / name), weights=weights)
    params, model_state = base.on_host(MODEL_DEF)
    expected = checkpoint.params if weights == "last" else checkpoint.ema
    assert params.keys() == expected.keys()
    assert all(np.array_equal(params[path], expected[path]) for path in expected)
    vectors = model_state["spectral_norm"]
    for path, pair in checkpoint.model_state["spectral_norm"].items():
        assert all(np.array_equal(vectors[path][side], pair[side]) for side in "uv")


def test_a_folder_is_restored_on_a_mesh(
    credit_run_folder: Path, checkpoint: Any, make_mesh: Any
) -> None:
    _, params, _ = restore(credit_run_folder, make_mesh(), weights="last")
    assert all(np.array_equal(params[path], x) for path, x in checkpoint.params.items())


def test_a_run_with_frozen_parameters_goes_to_torch_and_back(
    checkpoint: Any, tmp_path: Path
) -> None:
    """PyTorch's optimizer lists them without state, as CREDIT's after a first step."""
    config = copy.deepcopy(CONFIG)
    config["trainer"]["finetune"] = {"from": "RUN", "freeze": ["stages/*"]}
    moments = checkpoint.moments
    first, second = (
        {path: x for path, x in values.items() if not path.startswith("stages/")}
        for values in (moments.mu, moments.nu)
    )
    trained = replace(checkpoint, moments=Moments(first, second, moments.count))
    written = to_torch(config, trained)
    keys = key_map_for(MODEL_DEF).parameters.keys
    trained_numbers = {i for i, k in enumerate(keys) if not k.startswith("layers.")}
    optimizer = written["checkpoint.pt"]["optimizer_state_dict"]
    assert set(optimizer["state"]) == trained_numbers
    assert optimizer["param_groups"][0]["params"] == [*range(len(keys))]
    torch.save(written["checkpoint.pt"], tmp_path / "checkpoint.pt")
    back = from_torch(config, tmp_path / "checkpoint.pt")
    assert back.moments is not None
    assert back.moments.mu.keys() == first.keys()
    for path, value in first.items():
        assert np.array_equal(back.moments.mu[path], value), path


@pytest.fixture
def reference_of_orbax_run(credit_folder, model_config):
    return from_torch(model_config, credit_folder)


@pytest.mark.reference
def test_our_checkpoints_come_back_bitwise(
    reference_of_orbax_run, model_config, tmp_path
):
    run_config = read_run_config(model_config)
    write_run(tmp_path / "run", run_config, [reference_of_orbax_run])
    first = read_run(tmp_path / "run", run_config.model_def)
    files = to_torch(model_config, first)
    (tmp_path / "torch").mkdir()
    for name, content in files.items():
        torch.save(content, tmp_path / "torch" / name)
    second = from_torch(model_config, tmp_path / "torch")
    write_run(tmp_path / "again", run_config, [second])
    third = read_run(tmp_path / "again", run_config.model_def)
    for one, other in ((first, reference_of_orbax_run), (third, first)):
        same(one.params, other.params)
        same(one.model_state, other.model_state)
        same(one.ema, other.ema)
        same(vars(one.moments), vars(other.moments))
        assert (one.micro_step, one.update_step) == (20, 20)


PLATEAU = {"scheduler_type": "plateau", "patience": 3, "factor": 0.5}
SEEN = PlateauState(epochs=3, best=0.25, bad_epochs=2, cooldown=1)


def config(**trainer: Any) -> dict[str, Any]:
    changed = copy.deepcopy(CONFIG)
    changed["trainer"] |= trainer
    return changed


def there_and_back(mapping: Any, checkpoint: Any, folder: Path) -> Any:
    for name, content in to_torch(mapping, checkpoint).items():
        torch.save(content, folder / name)
    return from_torch(mapping, folder)


@pytest.mark.reference
def test_a_plateau_and_its_rate(rng: Any, tmp_path: Path) -> None:
    """CREDIT keeps the rate in the optimizer and the state in the scheduler."""
    mapping = config(scheduler=PLATEAU)
    progress = Progress(epoch=3, learning_rate=2.5e-4, plateau=SEEN)
    checkpoint = replace(draw_checkpoint(rng), progress=progress)
    files = to_torch(mapping, checkpoint)["checkpoint.pt"]
    (group,) = files["optimizer_state_dict"]["param_groups"]
    assert group["lr"] == 2.5e-4
    assert "initial_lr" not in group, "ReduceLROnPlateau sets none"
    schedule = files["scheduler_state_dict"]
    assert (schedule["best"], schedule["num_bad_epochs"]) == (0.25, 2)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert back.progress == progress
    assert back.settings == {}
    assert back.micro_step == 60
    # The settings of the checkpoint take precedence, as they do in CREDIT.
    other = config(scheduler={**PLATEAU, "factor": 0.1, "min_lr": 1e-6})
    settings = from_torch(other, tmp_path).settings
    assert settings == {
        "trainer.scheduler.factor": 0.5,
        "trainer.scheduler.min_lr": 0.0,
    }
    wrong = config(scheduler={"scheduler_type": "lambda"})
    with pytest.raises(ValueError, match="not the state of 'lambda'"):
        from_torch(wrong, tmp_path, batches_per_epoch=20)


@pytest.mark.reference
def test_a_constant_rate(rng: Any, tmp_path: Path) -> None:
    mapping = config(use_scheduler=False, scheduler=None)
    progress = Progress(epoch=3, learning_rate=0.02)
    checkpoint = replace(draw_checkpoint(rng), progress=progress)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert back.progress == progress
    assert back.settings == {"trainer.learning_rate": 0.02}
    pairs = {"use_scheduler": False, "scheduler": None, "grad_accum_every": 2}
    assert from_torch(config(**pairs), tmp_path).micro_step == 60, "3 epochs"
    unknown = {"parallelism": {"data": "ddp"}, "batches_per_epoch": 0}
    back = from_torch(config(**pairs, **unknown), tmp_path)
    assert back.micro_step == 120, "60 updates"


@pytest.mark.reference
@pytest.mark.slow
def test_parameters_of_a_loss_are_not_in_credits_files(
    rng: Any, tmp_path: Path
) -> None:
    """Such a run converts; a note tells that CREDIT initializes the parameters anew."""
    args = {"var_weighting": "learnable", "scaler_path": "scaler.json"}
    mapping = config() | {"loss": {"type": "base", "args": args}}
    checkpoint = draw_checkpoint(rng)
    learned = {"params": {"log_variance": np.zeros(4, np.float32)}}
    store = CheckpointStore(tmp_path)
    items = {**items_of(checkpoint, seed=1), LOSS: learned}
    store.save(60, items, checkpoint.progress)
    store.close()
    found = read_run(tmp_path, MODEL_DEF)
    (tmp_path / "torch").mkdir()
    run_config = read_run_config(mapping)
    assert any("begins anew" in note for note in cautions(run_config, found))
    back = there_and_back(mapping, found, tmp_path / "torch")
    assert any("it begins anew" in note for note in back.notes)
    assert not any("anew" in note for note in cautions(read_run_config(CONFIG), found))
