"""Runs that go on in CREDIT and here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.cli.train import main as train
from credit_jax.config import apply_overrides, build_config, write_config
from credit_jax.extensions.certification.small_config import (
    fit_scalers,
    make_small,
    write_files,
)
from credit_jax.extensions.packaging import command as package
from credit_jax.models.conversion import from_state_dict
from credit_torch_bridge import JaxCheckpoint, Moments
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run_config, write_run
from tests.bridge.going_on import JaxRun, credit_goes_on, follow
from tests.bridge.runs import assert_same, read_torch
from tests.reference.training import run_credit
from tests.support import assert_close
from tests.support.configs import CONFIGS

pytestmark = [pytest.mark.reference, pytest.mark.slow]


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
        trainer |= {"scheduler": None, "use_scheduler": False}
    if trainer.get("ensemble_size"):
        trainer["ensemble_size"] = 2
    for key in ("num_epoch", "fsdp"):
        trainer.pop(key, None)
    start = config["validation_data"]["start_datetime"]
    hours = LEADS * int(config["data"]["timestep"].removesuffix("h"))
    dates = {"start_datetime": start, "forecast_length": f"{hours}h"}
    config["inference"] = {"run_mode": "single", "single_forecast": dates}
    parsed = build_config(config)
    write_files(parsed)
    fit_scalers(parsed)
    return config


def forecasts_agree(folder: Path, tolerance: float = FIELD) -> None:
    """Asserts that CREDIT forecasts from `folder/torch` as credit_jax from `run`."""
    run, theirs = folder / "run", folder / "torch" / "forecast"
    given = "--config", run / "model.yml", "--checkpoint", run, "--out", folder / "out"
    # CREDIT's rollout takes the last weights, not their average.
    options = "--cache", "none", "--weights", "last"
    assert forecast([*map(str, (*given, *options))]) == OK
    config = str(folder / "torch" / "model.yml")
    run_credit("tests.reference.rollout_driver", [config, "1"], folder)
    files = sorted(path.relative_to(theirs) for path in theirs.rglob("*.nc"))
    assert len(files) == LEADS
    for file in files:
        with (
            xr.open_dataset(folder / "out" / file) as a,
            xr.open_dataset(theirs / file) as b,
        ):
            assert set(a.data_vars) == set(b.data_vars)
            for name, expected in b.data_vars.items():
                what = f"{file} {name}"
                assert_close(a[name].values, expected.values, tolerance, what)


@pytest.mark.parametrize("name", FAMILIES)
def test_credit_goes_on_from_a_run(credit, bridge, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = small_run(name, tmp_path)
    write_config(build_config(config), tmp_path / "run" / "model.yml")
    ours = JaxRun(tmp_path / "run", NUM_STEPS, BATCHES.get(name, 0.0))
    _, state = ours.train(ours.fresh_state(), 0)
    ours.save(tmp_path / "run", state, Progress(epoch=1))

    bridge.convert("torch", tmp_path / "run", tmp_path / "torch")
    if name in FORECASTS:
        forecasts_agree(tmp_path)
    # Before CREDIT writes its own checkpoint there.
    bridge.convert("jax", tmp_path / "torch", tmp_path / "jax")
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
    credit_run, credit_folder, resumed_credit, continue_credit, bridge, tmp_path,
    monkeypatch,
):  # fmt: skip
    data, first = credit_run
    monkeypatch.chdir(data)
    jax, ours, back = (tmp_path / name for name in ("jax", "ours", "torch"))
    bridge.convert("jax", credit_folder, jax, says="--resume goes on with epoch 2")
    run = JaxRun(jax, NUM_STEPS_RESUME)
    start = run.start(jax)
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

    begin(ours, read_run_config(jax / "model.yml"), first.initial)
    _, state = run.train(run.start(ours).state, 0, first.x)
    run.save(ours, state, Progress(epoch=1))
    bridge.convert("torch", ours, back)
    there, printed = continue_credit(back)
    follow(there.loss, resumed_credit.loss, "JAX, then PyTorch")
    assert "All keys matched successfully" in printed
    assert f"Resumed EMA from {back}/checkpoint_ema.pt (step 20)" in printed
    for line in printed.splitlines():
        assert not line.startswith("WARNING"), line
        assert "checkpoint" not in line.lower() or "warn" not in line.lower(), line


# Largest relative error of a field of a forecast, two steps of the model of the demo.
FIELD_ADAPTERS = 1e-6
LORA = {"rank": 4, "alpha": 8, "targets": ["*attention/to_*", "*feed_forward*"]}


def test_a_run_with_adapters(credit, bridge, tmp_path, monkeypatch):
    """CREDIT gets the same sums of the run, of its package, and on its own base."""
    monkeypatch.chdir(tmp_path)
    config = small_run("demo", tmp_path)
    config["trainer"] |= {"skip_validation": True, "grad_accum_every": 1}
    folders = "base run package sums jax back base_torch of_file again again_package"
    base, run, packed, sums, jax, back, base_torch, of_file, again, again_packed = (
        tmp_path / name for name in folders.split()
    )

    def trained(out: Path, section: Any) -> None:
        config["save_loc"], config["trainer"]["finetune"] = str(out), section
        path = out.with_suffix(".yml")
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        assert train(["--config", str(path), "--cache", "none"]) == OK

    def packaged(source: Path, out: Path) -> None:
        options = ["--checkpoint", str(source), "--weights", "last", "--adapters"]
        assert package.main([*options, "--out", str(out)]) == OK

    trained(base, None)
    trained(run, {"from": str(base), "lora": LORA})
    bridge.convert("torch", run, tmp_path / "torch", "--merge")
    forecasts_agree(tmp_path, FIELD_ADAPTERS)
    packaged(run, packed)
    size = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
    whole = (tmp_path / "torch" / "checkpoint.pt").stat().st_size
    assert size < 0.1 * whole
    bridge.convert("torch", packed, sums, "--base", base)
    bridge.convert("jax", packed, jax, "--base", base)
    bridge.convert("torch", jax, back)
    words = "has no adapters (trainer.finetune.lora)"
    bridge.convert("torch", base, base_torch, "--merge", code=2, says=words)
    bridge.convert("torch", base, base_torch)
    # CREDIT's file is as good a base, for its package and for training.
    file = base_torch / "checkpoint.pt"
    bridge.convert("torch", packed, of_file, "--base", file)
    trained(again, {"from": str(file), "lora": LORA})
    packaged(again, again_packed)
    alone = tmp_path / "of_file_alone"
    bridge.convert("torch", again_packed, alone, "--base", file)
    expected = read_torch(tmp_path / "torch")["model_state_dict"]
    for folder in (sums, back, of_file, alone):
        assert_same(read_torch(folder)["model_state_dict"], expected)
