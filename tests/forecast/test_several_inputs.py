"""wrf and dscale from a YAML: training, validation and forecasts, on two meshes."""

from __future__ import annotations

import copy
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.checkpoint.run import open_run
from credit_jax.cli.check import main as check
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast_main
from credit_jax.config import build_config
from credit_jax.data import build_loader
from credit_jax.extensions.packaging import command as package
from credit_jax.models.conversion import to_state_dict
from credit_jax.models.registry import build
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import read_log
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare
from tests.data.region import WRF, region, region_config
from tests.data.world import NUM_LAT, NUM_LON
from tests.forecast.tiny_run import BATCH, assert_same_runs, forecast, read
from tests.support import assert_close
from tests.training.tiny import write_yaml

__all__ = ["region"]

# U and T on two levels, and SP.
NUM_PROGNOSTIC = 5
DSCALE: dict[str, Any] = {
    "type": "dscale",
    "image_height": NUM_LAT,
    "image_width": NUM_LON,
    "patch_height": 1,
    "patch_width": 1,
    "total_input_channels": 7,
    "total_target_channels": 6,
    "time_encode_dim": 8,
    "frames": 1,
    "frame_patch_size": 1,
    "dim": 4,
    **{key: WRF[key] for key in ("num_groups", "num_heads", "depth", "window_size")},
}
SETTINGS: dict[str, Any] = {
    "postblocks": {
        "per_step": {
            "reconstruct": {"type": "reconstruct"},
            "target": {
                "type": "reconstruct",
                "args": {"in_key": "y", "out_key": "y_target_processed"},
            },
        }
    },
    "inference": {"batch_forecast": BATCH, "output": {"format": "zarr"}},
    "validation_data": {
        "start_datetime": "2000-01-06",
        "end_datetime": "2000-01-10",
        "forecast_len": 2,
    },
    "data__forecast_len": 2,
    "trainer__epochs": 1,
    "trainer__batches_per_epoch": 2,
    "trainer__valid_batches_per_epoch": 1,
    "trainer__train_batch_size": 2,
    "trainer__learning_rate": 1e-2,
}


def _config(region: Path, folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    raw = region_config(region, **SETTINGS, **changes)
    raw["save_loc"] = str(folder / "run")
    if name == "dscale":
        raw["model"] = dict(DSCALE)
        del raw["data"]["source"]["AROUND"]
        raw["data"]["time_encoding"] = {"x_extra": ["input", "target"]}
    return raw


@cache
def _run(
    region: Path, folder: Path, name: str, mesh: str
) -> tuple[dict[str, Any], Any]:
    """Trains one epoch; returns the last row of its log, and forecasts."""
    own = folder / f"{name}-{mesh}"
    own.mkdir()
    degrees = {"1": {}, "tp 2 x domain 2": {"tensor": 2, "domain": 2}}[mesh]
    parallelism = {"data": "none", "tensor": 1, "domain": 1, **degrees}
    raw = _config(region, own, name, trainer__parallelism=parallelism)
    count = 4 if degrees else 1
    plan = plan_run(build_config(raw), num_devices=count)
    setup = prepare(plan, jax.devices()[:count])
    run_training(setup, own / "run", Display(Console(file=io.StringIO())))
    (log,) = read_log(own / "run" / "training_log.csv")
    config = write_yaml(own / "model.yml", raw)
    words = ",".join(f"{key}={value}" for key, value in parallelism.items())
    assert forecast(config, own / "out", "--parallelism", words) == OK
    return log, read(own / "out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wrf", "dscale"])
def test_a_run_and_its_forecasts_are_the_same_on_a_mesh(
    region: Path, folder: Path, name: str
) -> None:
    meshes = "1", "tp 2 x domain 2"
    assert_same_runs(*(_run(region, folder, name, mesh) for mesh in meshes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wrf", "dscale"])
def test_forecasts_are_those_of_credit(
    credit: Any, region: Path, folder: Path, name: str
) -> None:
    """Against two steps of CREDIT's model, called with the inputs of each step."""

    import torch

    _, store = _run(region, folder, name, "1")
    raw = _config(region, folder, name)
    raw["data"]["forecast_len"] = 1
    config = build_config(raw)
    model_def = build(raw["model"])
    weights = open_run(folder / f"{name}-1" / "run", None, "last")
    state = to_state_dict(model_def, *weights.on_host(model_def))
    model = credit.build_credit(raw["model"], seed=0).eval()
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()})
    loader = build_loader(config, split="train")
    start = np.datetime64("1999-12-30T00")
    index = int(np.flatnonzero(loader.dataset.starts == start)[0])
    predicted = None
    for step in range(2):
        batch = loader.read([index + step])
        x = batch.x.copy()
        if predicted is not None:
            x[:, :NUM_PROGNOSTIC] = predicted[:, :NUM_PROGNOSTIC]
        given = {"x": x, **batch.further}
        with torch.no_grad():
            y = model(**{k: torch.from_numpy(v.copy()) for k, v in given.items()})
        predicted = y.numpy()
    assert predicted is not None
    mean, std = (_scale(region / f"{own}.nc")[:, None, None] for own in ("mean", "std"))
    found = store["U"].sel(time=start).isel(prediction_timedelta=2).values
    expected = predicted[0, :2, 0] * std + mean
    assert_close(np.squeeze(found), expected, 1e-5, "U after two steps")


def _scale(path: Path) -> np.ndarray:
    """Returns the means and deviations of the two levels of U, float32."""
    with xr.open_dataset(path) as file:
        return file["U"].values[[0, 2]].astype("f4")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wrf", "dscale"])
def test_a_package_has_all_but_the_fields_of_every_input(
    region: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    """Forecasts of the package equal those of the run bit for bit."""
    _, ours = _run(region, folder, name, "1")
    run = folder / f"{name}-1"
    made = tmp_path / "made"
    own = ["--config", str(run / "model.yml"), "--checkpoint", str(run / "run")]
    assert package.main([*own, "--out", str(made)]) == OK
    card = (made / "README.md").read_text()
    assert "x_extra: times of input, target" in card
    assert ("x_outside: Z (2 levels), MSL" in card) == (name == "wrf")
    channels = json.loads((made / "channels.json").read_text())
    outside = [(own["variable"], own["level"]) for own in channels.get("x_outside", ())]
    levels = [("Z", 1), ("Z", 2), ("MSL", None)]
    assert outside == (levels if name == "wrf" else [])
    of_source: dict[str, tuple[str, ...]]
    of_source = {"ERA5": ("w", "prognostic", "dynamic_forcing")}
    if name == "wrf":
        of_source["AROUND"] = ("o", "dynamic_forcing")
    places: dict[str, Any] = {
        source: {
            "variables": {kind: {"path": f"{region / stem}_%Y.nc"} for kind in kinds}
        }
        for source, (stem, *kinds) in of_source.items()
    }
    data = write_yaml(tmp_path / "data.yml", {"source": places})
    options = ["--package", str(made), "--data", data, "--cache", "none"]
    options += ["--init-time", "1999-12-30T00", "--length", "18h"]
    assert forecast_main([*options, "--out", str(tmp_path / "out")]) == OK
    theirs = read(tmp_path / "out")
    start = np.datetime64("1999-12-30T00")
    for key in theirs.data_vars:
        np.testing.assert_array_equal(
            theirs[key].sel(time=start).values,
            ours[key].sel(time=start).values,
            err_msg=str(key),
        )


def test_check_shows_their_inputs_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("wrf", "dscale"):
        raw = _config(tmp_path, tmp_path, name)
        config = write_yaml(tmp_path / f"{name}.yml", raw)
        assert check(["--config", config, "--no-data"]) == OK
        printed = capsys.readouterr().out
        assert "Further inputs" in printed
        assert ("Further inputs: x_outside" in printed) == (name == "wrf")
        assert check(["--config", config, "--no-data", "--json"]) == OK
        further = json.loads(capsys.readouterr().out)["further_inputs"]
        assert further["x_extra"][:2] == ["input", "target"]
        outside = [own["variable"] for own in further.get("x_outside", ())]
        assert outside == (["Z", "Z", "MSL"] if name == "wrf" else [])


def test_check_counts_the_channels_of_every_input_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = _config(tmp_path, tmp_path, "wrf")
    raw["model"] = copy.deepcopy(raw["model"])
    raw["model"]["param_outside"]["surface_channels"] = 2
    config = write_yaml(tmp_path / "wrf.yml", raw)
    assert check(["--config", config, "--no-data", "--json"]) != OK
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "x_outside has 4 channels, but its sources AROUND have 3" in str(problem)
