"""Files and config of `wrf`: a region, and coarser boundary fields around it."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from tests.data.world import NUM_LAT, NUM_LON, raw_config, save, write_world

# Twice as many rows as the region, every 3 hours; the region has every 6.
ROWS, COLUMNS, LEVELS = 2 * NUM_LAT, NUM_LON, (1.0, 2.0)
TIMES = pd.date_range("1999-12-25", "2000-01-12", freq="3h")
EVERY = "3h"

_COMMON = {"levels": 2, "patch_width": 1, "dim": 4}
WRF: dict[str, Any] = {
    "type": "wrf",
    "param_interior": {
        **_COMMON,
        "image_height": NUM_LAT,
        "image_width": NUM_LON,
        "patch_height": 1,
        "frames": 1,
        "frame_patch_size": 1,
        "channels": 2,
        "surface_channels": 1,
        "input_only_channels": 2,
        "output_only_channels": 1,
    },
    "param_outside": {
        **_COMMON,
        "image_height": ROWS,
        "image_width": COLUMNS,
        "patch_height": 2,
        "frames": 2,
        "frame_patch_size": 2,
        "channels": 1,
        "surface_channels": 1,
    },
    "time_encode_dim": 16,
    "num_groups": 2,
    "num_heads": 2,
    "depth": 2,
    "window_size": 2,
}
AROUND: dict[str, Any] = {
    "dataset_type": "local",
    "input": "x_outside",
    "temporal_mode": "next",
    "timestep": EVERY,
    "history_len": 2,
    "level_coord": "level",
    "levels": list(LEVELS),
    "end_datetime": "2000-01-12",
    "start_datetime": "1999-12-25",
}


def write_outside(folder: Path) -> None:
    """Writes o_1999.nc and o_2000.nc, the fields around the region."""
    rng = np.random.default_rng(2)
    shape = (len(TIMES), ROWS, COLUMNS)
    deep = (len(TIMES), len(LEVELS), ROWS, COLUMNS)
    dims = ("time", "latitude", "longitude")
    fields = xr.Dataset(
        {
            "Z": (("time", "level", *dims[1:]), rng.normal(size=deep)),
            "MSL": (dims, rng.normal(size=shape)),
        },
        coords={
            "time": TIMES,
            "level": list(LEVELS),
            "latitude": np.linspace(80, -80, ROWS),
            "longitude": np.arange(COLUMNS) * 36.0,
        },
    ).astype("f4")
    for year in (1999, 2000):
        save(fields.sel(time=str(year)), folder / f"o_{year}.nc")


def region_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """A config of `wrf`, whose files are those of `write_world` and `write_outside`."""
    raw = raw_config(folder, model=copy.deepcopy(WRF), **changes)
    fields = {"vars_3D": ["Z"], "vars_2D": ["MSL"]}
    path = os.fspath(folder / "o_%Y.nc")
    variables = {"dynamic_forcing": {**fields, "path": path}}
    raw["data"]["source"]["AROUND"] = {**AROUND, "variables": variables}
    raw["data"]["time_encoding"] = {"x_extra": ["input", "target", "AROUND"]}
    return raw


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the region and of the fields around it."""
    folder = tmp_path_factory.mktemp("region")
    write_world(folder)
    write_outside(folder)
    return folder
