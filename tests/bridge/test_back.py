"""CREDIT goes on from what `convert --to torch` writes.

Files of configs/ of several families, made small, with the model of the demo as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.config import apply_overrides, build_config, write_config
from credit_jax.extensions.certification.random_files import fit_scalers, write_files
from credit_jax.extensions.certification.small_config import make_small
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
