"""The small data set that `gen2.yml` in this folder reads."""

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

NUM_LAT, NUM_LON, NUM_LEVELS = 32, 64, 2
TIMES = pd.date_range("2000-01-01", "2000-01-15", freq="6h")


def write_dataset(folder: Path) -> None:
    """Writes d_2000.nc, static.nc, mean.nc, std.nc: noise of the right magnitudes."""
    rng = np.random.default_rng(0)
    grid = {
        "latitude": np.linspace(90, -90, NUM_LAT),
        "longitude": np.arange(NUM_LON) * 360 / NUM_LON,
    }
    fields = _fields(rng).assign_coords(grid)
    fields.to_netcdf(folder / "d_2000.nc")
    mask = (("latitude", "longitude"), _single(rng.random((NUM_LAT, NUM_LON))))
    xr.Dataset({"LSM": mask}, coords=grid).to_netcdf(folder / "static.nc")
    scaled = fields[["T", "U", "SP", "TP"]].drop_vars(["level", *grid])
    dims = ["time", "latitude", "longitude"]
    scaled.mean(dims).to_netcdf(folder / "mean.nc")
    scaled.std(dims).to_netcdf(folder / "std.nc")


def _fields(rng: np.random.Generator) -> xr.Dataset:
    flat, deep = ("time", "latitude", "longitude"), ("time", "level")
    shape = (len(TIMES), NUM_LAT, NUM_LON)
    shape_3d = (len(TIMES), NUM_LEVELS, NUM_LAT, NUM_LON)
    return xr.Dataset(
        {
            "T": ((*deep, *flat[1:]), _single(rng.normal(280, 10, shape_3d))),
            "U": ((*deep, *flat[1:]), _single(rng.normal(0, 5, shape_3d))),
            "SP": (flat, _single(rng.normal(1e5, 1e3, shape))),
            "tsi": (flat, _single(rng.random(shape))),
            "TP": (flat, _single(rng.random(shape))),
        },
        coords={"time": TIMES, "level": [1.0, 2.0]},
    )


def _single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)
