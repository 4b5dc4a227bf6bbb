"""Forecasts of models with several inputs, and from other data than those of training.

wrf and dscale are trained, validated and forecast from a YAML, on two meshes.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint.run import open_run
from credit_jax.cli.check import main as check
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast_main
from credit_jax.config import build_config
from credit_jax.data import build_loader
from credit_jax.extensions.packaging import command as package
from credit_jax.models.conversion import to_state_dict
from credit_jax.models.registry import build
from tests.data.region import WRF, region, region_config
from tests.data.world import NUM_LAT, NUM_LON
from tests.forecast.test_messages import score
from tests.forecast.tiny_run import (
    FORECASTS,
    Run,
    assert_same_runs,
    forecast,
    read,
    train_and_forecast,
    write_config,
)
from tests.support import assert_close
from tests.training.tiny import write_yaml

__all__ = ["region"]

START = "1999-12-30T00"
# U and T on two levels, and SP.
NUM_PROGNOSTIC = 5
DSCALE: dict[str, Any] = {
    **{"type": "dscale", "image_height": NUM_LAT, "image_width": NUM_LON},
    **{"patch_height": 1, "patch_width": 1, "time_encode_dim": 8, "dim": 4},
    **{"total_input_channels": 7, "total_target_channels": 6},
    **{"frames": 1, "frame_patch_size": 1},
    **{key: WRF[key] for key in ("num_groups", "num_heads", "depth", "window_size")},
}
TARGET = {"in_key": "y", "out_key": "y_target_processed"}
SETTINGS: dict[str, Any] = {
    **FORECASTS,
    "postblocks__per_step__target": {"type": "reconstruct", "args": TARGET},
    "validation_data": {
        **{"start_datetime": "2000-01-06", "end_datetime": "2000-01-10"},
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
    raw = region_config(region, **copy.deepcopy(SETTINGS), **changes)
    raw["save_loc"] = str(folder / "run")
    if name == "dscale":
        raw["model"] = dict(DSCALE)
        del raw["data"]["source"]["AROUND"]
        raw["data"]["time_encoding"] = {"x_extra": ["input", "target"]}
    return raw


@cache
def _run(region: Path, folder: Path, name: str, tensor: int) -> Run:
    """Trains one epoch, and forecasts, on tensor 1 or tensor 2 x domain 2."""
    own = folder / f"{name}-{tensor}"
    own.mkdir()
    mesh = {"data": "none", "tensor": tensor, "domain": tensor}
    raw = _config(region, own, name, trainer__parallelism=mesh)
    words = ",".join(f"{key}={value}" for key, value in mesh.items())
    return train_and_forecast(raw, own, tensor**2, "--parallelism", words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    return tmp_path_factory.mktemp("runs")


several = pytest.mark.parametrize("name", ["wrf", "dscale"])


@pytest.mark.slow
@several
def test_runs_on_meshes_and_with_credit(
    credit: Any, region: Path, folder: Path, name: str
) -> None:
    """Against two steps of CREDIT's model, called with the inputs of each step."""
    import torch

    run = _run(region, folder, name, 1)
    assert_same_runs(run, _run(region, folder, name, 2))
    raw = _config(region, folder, name)
    raw["data"]["forecast_len"] = 1
    model_def = build(raw["model"])
    weights = open_run(folder / f"{name}-1" / "run", None, "last")
    state = to_state_dict(model_def, *weights.on_host(model_def))
    model = credit.build_credit(raw["model"], seed=0).eval()
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()})
    loader = build_loader(build_config(raw), split="train")
    start = np.datetime64(START)
    index = int(np.flatnonzero(loader.dataset.starts == start)[0])
    y = None
    for step in range(2):
        batch = loader.read([index + step])
        given = {"x": batch.x.copy(), **batch.further}
        if y is not None:
            given["x"][:, :NUM_PROGNOSTIC] = y[:, :NUM_PROGNOSTIC]
        with torch.no_grad():
            y = model(**{k: torch.from_numpy(v.copy()) for k, v in given.items()})
        y = y.numpy()
    assert y is not None
    moments = (xr.load_dataset(region / f"{own}.nc")["U"] for own in ("mean", "std"))
    mean, std = (own.values[[0, 2], None, None].astype("f4") for own in moments)
    found = run[1]["U"].sel(time=start).isel(prediction_timedelta=2).values
    assert_close(found, y[0, :2, 0] * std + mean, 1e-5, "U after two steps")


@pytest.mark.slow
@several
def test_a_package_has_all_but_the_fields_of_every_input(
    region: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    """Forecasts of the package equal those of the run bit for bit."""
    _, ours = _run(region, folder, name, 1)
    run, made = folder / f"{name}-1", tmp_path / "made"
    own = ["--config", str(run / "model.yml"), "--checkpoint", str(run / "run")]
    assert package.main([*own, "--out", str(made)]) == OK
    card = (made / "README.md").read_text()
    assert "x_extra: times of input, target" in card
    assert ("x_outside: Z (2 levels), MSL" in card) == (name == "wrf")
    channels = json.loads((made / "channels.json").read_text()).get("x_outside", ())
    outside = [(own["variable"], own["level"]) for own in channels]
    assert outside == [("Z", 1), ("Z", 2), ("MSL", None)] * (name == "wrf")
    of_source = {"ERA5": ("w", "prognostic", "dynamic_forcing")}
    if name == "wrf":
        of_source |= {"AROUND": ("o", "dynamic_forcing")}
    places = {
        source: {
            "variables": {kind: {"path": f"{region / stem}_%Y.nc"} for kind in kinds}
        }
        for source, (stem, *kinds) in of_source.items()
    }
    data = write_yaml(tmp_path / "data.yml", {"source": places})
    options = ["--package", str(made), "--data", data, "--cache", "none"]
    options += ["--init-time", START, "--length", "18h"]
    assert forecast_main([*options, "--out", str(tmp_path / "out")]) == OK
    xr.testing.assert_equal(read(tmp_path / "out"), ours.sel(time=[START]))


def test_check_shows_their_inputs_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("wrf", "dscale"):
        raw = _config(tmp_path, tmp_path, name)
        options = ["--config", write_yaml(tmp_path / f"{name}.yml", raw), "--no-data"]
        assert check(options) == OK
        printed = capsys.readouterr().out
        assert "Further inputs" in printed
        assert ("Further inputs: x_outside" in printed) == (name == "wrf")
        assert check([*options, "--json"]) == OK
        further = json.loads(capsys.readouterr().out)["further_inputs"]
        assert further["x_extra"][:2] == ["input", "target"]
        outside = [own["variable"] for own in further.get("x_outside", ())]
        assert outside == ["Z", "Z", "MSL"] * (name == "wrf")
    raw = _config(tmp_path, tmp_path, "wrf")
    raw["model"] = copy.deepcopy(raw["model"])
    raw["model"]["param_outside"]["surface_channels"] = 2
    options = ["--config", write_yaml(tmp_path / "wrf.yml", raw), "--no-data"]
    assert check([*options, "--json"]) != OK
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "x_outside has 4 channels, but its sources AROUND have 3" in str(problem)


# Other data than those of training, converted by preblocks.


@pytest.mark.slow
def test_data_of_the_inference_section(world, run, whole, tmp_path):
    for path in sorted(world.glob("w_*.nc")):
        with xr.open_dataset(path) as fields:
            own = fields[["T", "U", "SP", "tsi"]]
            own.rename(T="temperature").to_netcdf(tmp_path / path.name)
    raw = yaml.safe_load((run / "model.yml").read_text())
    source = raw["data"]["source"]["ERA5"]
    variables = source["variables"]
    del variables["diagnostic"]
    for kind in ("prognostic", "dynamic_forcing"):
        variables[kind]["path"] = f"{tmp_path}/w_%Y.nc"
    variables["prognostic"]["vars_3D"] = ["U", "temperature"]
    mapping = {"ERA5/prognostic/3d/temperature": "ERA5/prognostic/3d/T"}
    names = {"type": "rename", "args": {"mapping": mapping}}
    inference = {
        **FORECASTS["inference"],
        "data": {"source": {"ERA5": source}, "timestep": "6h"},
        "preblocks": {"per_step": {"names": names, **raw["preblocks"]["per_step"]}},
    }
    other = write_config(world, run / "run", tmp_path, inference=inference)
    assert forecast(other, tmp_path / "out") == 0
    ours, theirs = read(tmp_path / "out"), read(whole)
    assert [*ours.data_vars] == [*theirs.data_vars], "diagnostic variables, too"
    for name in theirs.data_vars:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name


@pytest.mark.slow
def test_data_on_other_levels(world, run, tmp_path, capsys):
    """Brought to those of the model, and not scored; `test_recipe` has their values."""
    raw = yaml.safe_load((run / "model.yml").read_text())
    args = {"surface_pressure_var": "ERA5/prognostic/2d/SP"}
    args |= {"variables": [f"ERA5/prognostic/3d/{name}" for name in "TU"]}
    args |= {"source_level_info_file": "ERA5_Lev_Info.nc"}
    args |= {"source_levels": [100, 120, 137], "dest_levels": [110, 130]}
    levels = {"levels": {"type": "hybrid_level_interp", "args": args}}
    source = raw["data"]["source"]["ERA5"] | {"levels": None}
    inference = {
        "output": {"format": "zarr"},
        "data": raw["data"] | {"source": {"ERA5": source}},
        "preblocks": {"per_step": {**levels, **raw["preblocks"]["per_step"]}},
    }
    config = write_config(world, run / "run", tmp_path, inference=inference)
    options = ("--init-time", "2000-01-01", "--length", "12h")
    assert forecast(config, tmp_path / "out", *options) == OK
    store = read(tmp_path / "out")
    assert store.level.values.tolist() == [1.0, 4.6], "those of the training"
    assert np.isfinite(store.isel(prediction_timedelta=slice(1, None)).to_array()).all()
    capsys.readouterr()
    assert score(tmp_path / "out", tmp_path / "scores", "--climatology", "none") == OK
    text = " ".join(capsys.readouterr().out.split())
    assert "T, U are on other levels than the forecasts" in text
