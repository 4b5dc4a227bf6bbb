"""Runs that go on in CREDIT and here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
import torch
import xarray as xr
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.cli.train import main as train
from credit_jax.config import apply_overrides, build_config, write_config
from credit_jax.extensions.certification.random_files import fit_scalers, write_files
from credit_jax.extensions.certification.small_config import make_small
from credit_jax.extensions.packaging import command as package
from credit_jax.models.conversion import from_state_dict
from credit_torch_bridge import JaxCheckpoint, Moments
from credit_torch_bridge.checkpoint.jax_checkpoint import write_run
from credit_torch_bridge.checkpoint.run_config import read_run_config
from tests.bridge.going_on import JaxRun, credit_goes_on, follow
from tests.reference.training import run_credit
from tests.support import assert_close

pytestmark = [pytest.mark.reference, pytest.mark.slow]


CONFIGS = Path(__file__).parents[2] / "configs"
NUM_STEPS = 4
LEADS = 2
# Families of which a forecast is compared, too, and the tolerance of every field.
FORECASTS = ("demo",)
FIELD = 1e-5
# Files of configs/, and changes of them. Two programs draw other random numbers; where
# no wind exceeds the filter's threshold, CREDIT's gradients are NaN.
_THRESHOLD = "postblocks.per_step.wind_filter.args.speed_threshold"
FAMILIES: dict[str, dict[str, Any]] = {
    "camulator": {_THRESHOLD: 0.05},
    "demo": {},
    "crossformer_ensemble_1deg": {},
    "crossformer_wxformer_6h": {},
    "downscaling_conus404": {},
    "fuxi_6h": {},
    "graph_1deg": {},
    "nextgen_wxformer_6h": {},
    "swin_6h": {"model.drop_path_rate": 0.0},
    "unet_1deg": {},
    "unet_downscaling_conus404": {},
}
# Largest difference of a normalized value of one batch, where it is not 0: scalers of
# bridgescaler round the last digit otherwise.
BATCHES = {"camulator": 5e-7}


def small_run(name: str, folder: Path) -> dict[str, Any]:
    """Returns a file of configs/ made small, for one device, after writing its data."""
    whole = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config = make_small(whole, folder)
    if name == "demo":
        # Its fields are drawn here: making them takes minutes.
        del config["demo"]
        config["model"] = whole["model"]
    changes = [f"{key}={value}" for key, value in FAMILIES[name].items()]
    config = apply_overrides(config, changes)
    trainer = config["trainer"]
    trainer |= {
        "parallelism": {"data": "none", "tensor": 1, "domain": 1},
        "num_devices": 1,
        "amp": False,
        # CREDIT recomputes with another power iteration of spectral norm.
        "activation_checkpoint": False,
        "batches_per_epoch": NUM_STEPS,
        "learning_rate": 1e-3,
        "grad_accum_every": min(2, trainer.get("grad_accum_every", 1)),
    }
    if trainer.get("scheduler", {}).get("warmup_steps"):
        trainer["scheduler"]["warmup_steps"] = 2
    else:
        # CREDIT's own resume loses the rate of a schedule that counts epochs.
        trainer.pop("scheduler", None)
        trainer["use_scheduler"] = False
    if trainer.get("ensemble_size"):
        trainer["ensemble_size"] = 2
    for key in ("num_epoch", "fsdp"):
        trainer.pop(key, None)
    start = config["validation_data"]["start_datetime"]
    hours = LEADS * int(config["data"]["timestep"].removesuffix("h"))
    config["inference"] = {
        "run_mode": "single",
        "single_forecast": {
            "start_datetime": start,
            "forecast_length": f"{hours}h",
        },
    }
    parsed = build_config(config)
    write_files(parsed)
    fit_scalers(parsed)
    return config


def forecasts_agree(folder: Path, tolerance: float = FIELD) -> None:
    """Asserts that CREDIT forecasts from a converted run as credit_jax from the run.

    Args:
        folder: folder of `run` and of its conversion, `torch`.
        tolerance: largest relative error of a field.
    """
    out = folder / "forecast"
    given = "--config", folder / "run" / "model.yml", "--checkpoint", folder / "run"
    # CREDIT's rollout takes the last weights, not their average.
    options = "--out", out, "--cache", "none", "--weights", "last"
    assert forecast([str(each) for each in (*given, *options)]) == OK
    config = str(folder / "torch" / "model.yml")
    run_credit("tests.reference.rollout_driver", [config, "1"], folder)
    theirs = folder / "torch" / "forecast"
    files = sorted(path.relative_to(theirs) for path in theirs.rglob("*.nc"))
    assert len(files) == LEADS
    for file in files:
        with xr.open_dataset(out / file) as a, xr.open_dataset(theirs / file) as b:
            assert set(a.data_vars) == set(b.data_vars)
            for name, expected in b.data_vars.items():
                assert_close(
                    a[name].values, expected.values, tolerance, f"{file} {name}"
                )


@pytest.mark.parametrize("name", FAMILIES)
def test_credit_goes_on_from_a_run(credit, bridge, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = small_run(name, tmp_path)
    write_config(build_config(config), tmp_path / "run" / "model.yml")
    ours = JaxRun(tmp_path / "run", NUM_STEPS, BATCHES.get(name, 0.0))
    _, state = ours.train(ours.fresh_state(), 0)
    ours.save(tmp_path / "run", state, Progress(epoch=1))

    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    print(text)
    if name in FORECASTS:
        forecasts_agree(tmp_path)
    # Before CREDIT writes its own checkpoint there.
    given = "--checkpoint", tmp_path / "torch", "--out", tmp_path / "jax"
    code, text = bridge("convert", "--to", "jax", *given)
    assert code == OK, text
    theirs, printed = credit_goes_on(tmp_path / "torch", tmp_path)
    assert "All keys matched successfully" in printed
    losses, _ = ours.train(ours.start(tmp_path / "jax").state, 1, theirs.x)
    assert len(set(losses)) == NUM_STEPS
    follow(losses, theirs.loss, name)


# A run that began in PyTorch resumes in JAX, and the reverse.
#
# CREDIT builds the scheduler after it has loaded the optimizer, and the scheduler then
# sets its first rate: the first batch after a resume trains at that rate (0 in a
# warm-up). A converted checkpoint records this (`Progress.first_rate_at`), so that
# credit_jax trains at the same rate.


NUM_STEPS_RESUME = 20


def begin(folder, run_config, initial):
    """Writes a checkpoint from before the first step, with CREDIT's weights."""
    params, model_state = from_state_dict(run_config.model_def, initial)
    zeros = {path: np.zeros_like(array) for path, array in params.items()}
    folder.mkdir()
    checkpoint = JaxCheckpoint(params, model_state, moments=Moments(zeros, zeros, 0))
    write_run(folder, run_config, [checkpoint])


def test_runs_go_on_in_both_directions(
    credit_run,
    credit_folder,
    resumed_credit,
    continue_credit,
    bridge,
    tmp_path,
    monkeypatch,
):
    data, first = credit_run
    monkeypatch.chdir(data)
    given = "--to", "jax", "--checkpoint", credit_folder, "--out", tmp_path / "jax"
    code, text = bridge("convert", *given)
    assert code == 0, text
    assert "--resume goes on with epoch 2" in text
    run = JaxRun(tmp_path / "jax", NUM_STEPS_RESUME)
    start = run.start(tmp_path / "jax")
    state = start.state
    assert start.progress.epoch == 1
    assert start.progress.best_step == NUM_STEPS_RESUME
    updates = optax.tree.get(state.opt_state, "count")
    counts = state.micro_step, state.update_step, updates
    assert [int(count) for count in counts] == [NUM_STEPS_RESUME] * 3
    assert start.progress.first_rate_at == NUM_STEPS_RESUME
    assert resumed_credit.learning_rate[0] == 0.0, "CREDIT's first rate after a resume"
    losses, _ = run.train(state, 1, resumed_credit.x)
    follow(losses, resumed_credit.loss, "PyTorch, then JAX")

    begin(
        tmp_path / "ours",
        read_run_config(tmp_path / "jax" / "model.yml"),
        first.initial,
    )
    _, state = run.train(run.start(tmp_path / "ours").state, 0, first.x)
    run.save(tmp_path / "ours", state, Progress(epoch=1))
    given = "--to", "torch", "--checkpoint", tmp_path / "ours", "--out"
    code, text = bridge("convert", *given, tmp_path / "torch")
    assert code == 0, text
    there, printed = continue_credit(tmp_path / "torch")
    follow(there.loss, resumed_credit.loss, "JAX, then PyTorch")
    assert "All keys matched successfully" in printed
    assert f"Resumed EMA from {tmp_path}/torch/checkpoint_ema.pt (step 20)" in printed
    for line in printed.splitlines():
        assert not line.startswith("WARNING"), line
        assert "checkpoint" not in line.lower() or "warn" not in line.lower(), line


# Largest relative error of a field of a forecast, two steps of the model of the demo.
FIELD_ADAPTERS = 1e-6
LORA = {"rank": 4, "alpha": 8, "targets": ["*attention/to_*", "*feed_forward*"]}


def test_a_run_with_adapters(
    credit: Any, bridge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_run("demo", tmp_path)
    config["trainer"] |= {"skip_validation": True, "grad_accum_every": 1}
    finetune = {"from": str(tmp_path / "base"), "lora": LORA}
    for name, section in (("base", None), ("run", finetune)):
        config["save_loc"] = str(tmp_path / name)
        config["trainer"]["finetune"] = section
        path = tmp_path / f"{name}.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        assert train(["--config", str(path), "--cache", "none"]) == OK
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", "--merge", *given)
    assert code == OK, text
    forecasts_agree(tmp_path, FIELD_ADAPTERS)

    packed = tmp_path / "package"
    options = ["--checkpoint", str(tmp_path / "run"), "--weights", "last"]
    assert package.main([*options, "--adapters", "--out", str(packed)]) == OK
    size = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
    whole = (tmp_path / "torch" / "checkpoint.pt").stat().st_size
    assert size < 0.1 * whole
    given = "--checkpoint", packed, "--base", tmp_path / "base"
    code, text = bridge("convert", "--to", "torch", *given, "--out", tmp_path / "sums")
    assert code == OK, text
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "jax")
    assert code == OK, text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    of_base = "--checkpoint", tmp_path / "base", "--out", tmp_path / "base_torch"
    code, text = bridge("convert", "--to", "torch", "--merge", *of_base)
    assert code != OK
    assert "has no adapters (trainer.finetune.lora)" in text
    code, text = bridge("convert", "--to", "torch", *of_base)
    assert code == OK, text
    # CREDIT's file is as good a base, for its package and for training.
    file = tmp_path / "base_torch" / "checkpoint.pt"
    given = "--checkpoint", packed, "--base", file, "--out", tmp_path / "of_file"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    config["save_loc"] = str(tmp_path / "again")
    config["trainer"]["finetune"] = finetune | {"from": str(file)}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    assert train(["--config", str(path), "--cache", "none"]) == OK
    again = tmp_path / "again_package"
    options = ["--checkpoint", str(tmp_path / "again"), "--weights", "last"]
    assert package.main([*options, "--adapters", "--out", str(again)]) == OK
    given = "--checkpoint", again, "--base", file, "--out", tmp_path / "of_file_alone"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    names = ("torch", "sums", "back", "of_file", "of_file_alone")
    expected, *others = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in names
    )
    for other in others:
        assert expected["model_state_dict"].keys() == other["model_state_dict"].keys()
        for key, tensor in expected["model_state_dict"].items():
            assert torch.equal(tensor, other["model_state_dict"][key]), key
