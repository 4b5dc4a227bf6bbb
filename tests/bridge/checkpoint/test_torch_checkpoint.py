"""Every format of CREDIT gives the same checkpoint, and round-trips bit for bit."""

import copy
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
import torch

from credit_jax.checkpoint import LOSS, CheckpointStore, PlateauState, Progress
from credit_jax.models.conversion import key_map_for
from credit_jax.packages.package import open_artifact, restore
from credit_jax.plan.finetune import find_base
from credit_torch_bridge import Moments, from_torch, to_torch
from credit_torch_bridge.checkpoint.jax_checkpoint import (
    items_of,
    read_run,
    read_run_config,
)
from credit_torch_bridge.checkpoint.jax_to_torch import cautions
from tests.bridge.checkpoint import formats
from tests.bridge.runs import CONFIG, MODEL_DEF, assert_same, draw_checkpoint
from tests.bridge.runs import read_torch as load

same = chex.assert_trees_all_equal
FORMATS = pytest.mark.slow(but=["none", "fsdp2", "domain", "module."])


@pytest.fixture
def write(credit, credit_folder, model_config, tmp_path):
    def write_it(name):
        model = credit.build_credit(model_config["model"])
        return formats.write_whole(name, credit_folder, tmp_path, model)

    return write_it


@pytest.fixture(scope="session")
def reference(credit_folder, model_config):
    return from_torch(model_config, credit_folder)


def same_weights(one, other):
    same((one.params, one.model_state), (other.params, other.model_state))


def same_state(one, other):
    same_weights(one, other)
    same((one.ema, vars(one.moments)), (other.ema, vars(other.moments)))
    places = [(each.micro_step, each.update_step) for each in (one, other)]
    assert places == [(20, 20)] * 2


def there_and_back(mapping, checkpoint, folder):
    folder.mkdir(exist_ok=True)
    for name, content in to_torch(mapping, checkpoint).items():
        torch.save(content, folder / name)
    return from_torch(mapping, folder)


@pytest.mark.reference
@FORMATS
@pytest.mark.parametrize("name", formats.WHOLE)
def test_everything_comes_back_bitwise(
    write, reference, credit_folder, model_config, name
):
    checkpoint = from_torch(model_config, write(name))
    same_state(checkpoint, reference)
    assert checkpoint.settings == {}
    assert checkpoint.progress.epoch == 1
    files = to_torch(model_config, checkpoint)
    assert set(files) == {formats.MAIN, formats.AVERAGE}
    for file, content in files.items():
        assert_same(content, load(credit_folder, file), file)
    if name == "fsdp2":
        parallelism = {"data": "fsdp2", "tensor": 1, "domain": 1}
        trainer = model_config["trainer"] | {"parallelism": parallelism}
        files = to_torch(model_config | {"trainer": trainer}, checkpoint)
        assert_same(files[formats.MAIN], formats.by_name(load(credit_folder)))


@pytest.mark.reference
@pytest.mark.parametrize("name", formats.BARE)
def test_weights_alone(reference, credit_folder, model_config, tmp_path, name):
    path = formats.write_bare(name, credit_folder, tmp_path)
    checkpoint = from_torch(model_config, path)
    same_weights(checkpoint, reference)
    assert checkpoint.moments is checkpoint.ema is None


@pytest.mark.reference
def test_averages(write, reference, model_config):
    """One by itself takes the vectors beside it; those of old files are left out."""
    folder = write("none")
    average = from_torch(model_config, folder / formats.AVERAGE)
    same_weights(average, replace(reference, params=reference.ema))
    content, stored = load(folder, formats.AVERAGE), load(folder)["model_state_dict"]
    vectors = {k: v for k, v in stored.items() if k.endswith(("_u", "_v"))}
    content["model_state_dict"]["shadow"] |= vectors
    torch.save(content, folder / formats.AVERAGE)
    same(from_torch(model_config, folder).ema, reference.ema)
    (folder / formats.MAIN).unlink()
    with pytest.raises(ValueError, match="an average has no vectors of spectral norm"):
        from_torch(model_config, folder / formats.AVERAGE)


@pytest.mark.reference
def test_half_precision_is_widened(credit_folder, reference, model_config, tmp_path):
    state = load(credit_folder)["model_state_dict"]
    half = {key: value.to(torch.bfloat16) for key, value in state.items()}
    torch.save(half, tmp_path / "half.pt")
    kernel = from_torch(model_config, tmp_path / "half.pt").params["head/out/kernel"]
    expected = torch.from_numpy(reference.params["head/out/kernel"])
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, expected.to(torch.bfloat16).float().numpy())


@pytest.mark.parametrize("name", ["", "checkpoint.pt"])
@pytest.mark.parametrize("weights", [None, "last"])
def test_a_file_and_a_folder(credit_run_folder, checkpoint, name, weights):
    base = open_artifact(find_base(credit_run_folder / name), weights=weights)
    params, model_state = base.on_host(MODEL_DEF)
    same(params, checkpoint.params if weights == "last" else checkpoint.ema)
    same(model_state["spectral_norm"], checkpoint.model_state["spectral_norm"])


def test_a_folder_is_restored_on_a_mesh(credit_run_folder, checkpoint, make_mesh):
    _, params, _ = restore(credit_run_folder, make_mesh(), weights="last")
    same(jax.device_get(params), checkpoint.params)


def test_a_run_with_frozen_parameters_goes_to_torch_and_back(checkpoint, tmp_path):
    """PyTorch's optimizer lists them without state, as CREDIT's after a first step."""
    mapping = config(finetune={"from": "RUN", "freeze": ["stages/*"]})
    first, second = (
        {path: x for path, x in values.items() if not path.startswith("stages/")}
        for values in (checkpoint.moments.mu, checkpoint.moments.nu)
    )
    trained = replace(checkpoint, moments=Moments(first, second, 60), ema=None)
    optimizer = to_torch(mapping, trained)[formats.MAIN]["optimizer_state_dict"]
    keys = key_map_for(MODEL_DEF).parameters.keys
    numbers = {i for i, k in enumerate(keys) if not k.startswith("layers.")}
    assert set(optimizer["state"]) == numbers
    assert optimizer["param_groups"][0]["params"] == [*range(len(keys))]
    back = there_and_back(mapping, trained, tmp_path)
    same((back.moments.mu, back.moments.nu), (first, second))


PLATEAU = {"scheduler_type": "plateau", "patience": 3, "factor": 0.5}
SEEN = PlateauState(epochs=3, best=0.25, bad_epochs=2, cooldown=1)


def config(**trainer):
    return copy.deepcopy(CONFIG) | {"trainer": CONFIG["trainer"] | trainer}


@pytest.mark.reference
def test_a_plateau_and_its_rate(tmp_path):
    """CREDIT keeps the rate in the optimizer and the state in the scheduler."""
    mapping = config(scheduler=PLATEAU)
    progress = Progress(epoch=3, learning_rate=2.5e-4, plateau=SEEN)
    checkpoint = replace(draw_checkpoint(), progress=progress)
    files = to_torch(mapping, checkpoint)[formats.MAIN]
    (group,) = files["optimizer_state_dict"]["param_groups"]
    assert group["lr"] == 2.5e-4
    assert "initial_lr" not in group, "ReduceLROnPlateau sets none"
    schedule = files["scheduler_state_dict"]
    assert (schedule["best"], schedule["num_bad_epochs"]) == (0.25, 2)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert (back.progress, back.settings, back.micro_step) == (progress, {}, 60)
    # The settings of the checkpoint take precedence, as they do in CREDIT.
    other = config(scheduler={**PLATEAU, "factor": 0.1, "min_lr": 1e-6})
    section = "trainer.scheduler"
    settings = {f"{section}.factor": 0.5, f"{section}.min_lr": 0.0}
    assert from_torch(other, tmp_path).settings == settings
    wrong = config(scheduler={"scheduler_type": "lambda"})
    with pytest.raises(ValueError, match="not the state of 'lambda'"):
        from_torch(wrong, tmp_path, batches_per_epoch=20)


@pytest.mark.reference
def test_a_constant_rate(tmp_path):
    pairs = {"use_scheduler": False, "scheduler": None}
    mapping, progress = config(**pairs), Progress(epoch=3, learning_rate=0.02)
    checkpoint = replace(draw_checkpoint(), progress=progress)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert back.progress == progress
    assert back.settings == {"trainer.learning_rate": 0.02}
    pairs["grad_accum_every"] = 2
    assert from_torch(config(**pairs), tmp_path).micro_step == 60, "3 epochs"
    unknown = {"parallelism": {"data": "ddp"}, "batches_per_epoch": 0}
    assert from_torch(config(**pairs, **unknown), tmp_path).micro_step == 120, (
        "60 updates"
    )


@pytest.mark.reference
@pytest.mark.slow
def test_parameters_of_a_loss_are_not_in_credits_files(tmp_path):
    """Such a run converts; a note tells that CREDIT initializes the parameters anew."""
    args = {"var_weighting": "learnable", "scaler_path": "scaler.json"}
    mapping = config() | {"loss": {"type": "base", "args": args}}
    checkpoint = draw_checkpoint()
    learned = {"params": {"log_variance": np.zeros(4, np.float32)}}
    store = CheckpointStore(tmp_path)
    items = {**items_of(checkpoint, seed=1), LOSS: learned}
    store.save(60, items, checkpoint.progress)
    store.close()
    found = read_run(tmp_path, MODEL_DEF)
    assert any(
        "begins anew" in note for note in cautions(read_run_config(mapping), found)
    )
    back = there_and_back(mapping, found, tmp_path / "torch")
    assert any("it begins anew" in note for note in back.notes)
    assert not any("anew" in note for note in cautions(read_run_config(CONFIG), found))
