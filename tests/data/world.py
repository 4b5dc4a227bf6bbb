"""A small data set for tests: files of two years, three levels, and its config."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config import Config, parse

NUM_LAT, NUM_LON, LEVELS = 6, 10, (1.0, 2.0, 5.0)
TIMES = pd.date_range("1999-12-25", "2000-01-10", freq="6h")
FLAT = ("time", "latitude", "longitude")
DEEP = ("time", "level", "latitude", "longitude")
GRID = {
    "latitude": np.linspace(75, -75, NUM_LAT),
    "longitude": np.arange(NUM_LON) * 36.0,
}
MODEL = {
    "type": "wxformer",
    "frames": 1,
    "image_height": NUM_LAT,
    "image_width": NUM_LON,
    "levels": 2,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
}


# Levels that the files have; the config asks for others, of which they are the nearest.
EXACT = {"data__source__ERA5__levels": [1.0, 5.0]}


def write_world(folder: Path, times: Any = TIMES, kind: str = "nc") -> xr.Dataset:
    """Writes w_1999, w_2000 (kind "nc" or "zarr"), static.nc, mean.nc and std.nc."""
    fields = make_fields(times)
    for year in sorted({time.year for time in times}):
        part = fields.isel(time=[t.year == year for t in times])
        save(part, folder / f"w_{year}.{kind}")
    rng = np.random.default_rng(1)
    mask = (FLAT[1:], rng.random((NUM_LAT, NUM_LON)))
    save(xr.Dataset({"LSM": mask}, coords=GRID), folder / "static.nc")
    scaled = fields[["T", "U", "SP", "TP"]].drop_vars(["level", *GRID])
    save(scaled.mean(FLAT), folder / "mean.nc")
    save(scaled.std(FLAT), folder / "std.nc")
    return fields


def write_weights(path: Path, columns: np.ndarray, count: int) -> None:
    """Writes weights of a regrid, of which each point takes one of `count` points."""
    rows, number = np.repeat(GRID["latitude"], NUM_LON), NUM_LAT * NUM_LON
    weights = {
        "row": ("n_s", np.arange(number) + 1),
        "col": ("n_s", columns + 1),
        "S": ("n_s", np.ones(number)),
        "dst_grid_dims": ("rank", [NUM_LON, NUM_LAT]),
        "xc_b": ("n_b", np.tile(GRID["longitude"], NUM_LAT)),
        "yc_b": ("n_b", rows),
        "xc_a": ("n_a", np.zeros(count)),
    }
    xr.Dataset(weights).to_netcdf(path)


def make_fields(times: Any = TIMES) -> xr.Dataset:
    """Returns T and U (3-D, double precision), SP, tsi and TP (single precision)."""
    rng = np.random.default_rng(0)
    shape = (len(times), NUM_LAT, NUM_LON)
    deep = (len(times), len(LEVELS), NUM_LAT, NUM_LON)
    single = lambda values: values.astype(np.float32)  # noqa: E731
    variables = {
        "T": (DEEP, rng.normal(280, 10, deep)),
        "U": (DEEP, rng.normal(0, 5, deep)),
        "SP": (FLAT, single(rng.normal(1e5, 1e3, shape))),
        "tsi": (FLAT, single(rng.random(shape))),
        "TP": (FLAT, single(rng.random(shape))),
    }
    return xr.Dataset(variables, coords={"time": times, "level": list(LEVELS), **GRID})


def save(dataset: xr.Dataset, path: Path) -> None:
    """Writes NetCDF, or Zarr if the name ends with ".zarr"."""
    if path.suffix == ".zarr":
        dataset.to_zarr(path, mode="w", zarr_format=2, consolidated=True)
    else:
        dataset.to_netcdf(path)


def raw_config(folder: Path, kind: str = "nc", **changes: Any) -> dict[str, Any]:
    """Returns CREDIT's YAML as a mapping; `data__timestep="12h"` sets a nested key."""
    where = os.fspath(folder)
    path = f"{where}/w_%Y.{kind}"
    variables = {
        "prognostic": {"vars_3D": ["U", "T"], "vars_2D": ["SP"], "path": path},
        "dynamic_forcing": {"vars_2D": ["tsi"], "path": path},
        "static": {"vars_2D": ["LSM"], "path": f"{where}/static.nc"},
        "diagnostic": {"vars_2D": ["TP"], "path": path},
    }
    source = {"dataset_type": "local", "level_coord": "level", "levels": [1.0, 4.6]}
    means = {"mean_path": f"{where}/mean.nc", "std_path": f"{where}/std.nc"}
    norm = {"type": "era5_normalizer", "args": {**means, "levels": [1, 3]}}
    config: dict[str, Any] = {
        "save_loc": f"{where}/run",
        "seed": 7,
        "data": {
            "source": {"ERA5": {**source, "variables": variables}},
            "start_datetime": "1999-12-28",
            "end_datetime": "2000-01-05",
            "timestep": "6h",
            "history_len": 1,
            "forecast_len": 1,
        },
        "preblocks": {"per_step": {"norm": norm, "concat": {"type": "concat"}}},
        "model": copy.deepcopy(MODEL),
        "loss": {"training_loss": "mse"},
        "trainer": {
            "type": "gen2",
            "parallelism": {"data": "none", "tensor": 1, "domain": 1},
            "learning_rate": 1e-3,
            "weight_decay": 0,
            "amp": False,
            "use_scheduler": False,
            "train_batch_size": 3,
            "valid_batch_size": 2,
            "thread_workers": 0,
            "valid_thread_workers": 0,
        },
    }
    for dotted, value in changes.items():
        set_key(config, dotted, value)
    return config


def set_key(config: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets `a__b__c` in nested mappings."""
    *parents, last = dotted.split("__")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[last] = value


def parsed(raw: dict[str, Any]) -> Config:
    """Returns the parsed config of a mapping."""
    return parse(Config, raw)
