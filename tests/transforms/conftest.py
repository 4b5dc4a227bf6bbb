"""Fixtures: statistics files and a batch."""

import numpy as np
import pytest
import xarray as xr

from tests.training.conftest import compiled_once as compiled_once
from tests.training.conftest import tiny_model as tiny_model
from tests.training.conftest import world as world
from tests.transforms.cases import LEVELS, LSM, SP, TP, TSI, T

PATHS = ("mean_path", "std_path")


@pytest.fixture
def files(tmp_path):
    """Statistics of T on six levels, of SP, and of TP without spread."""
    mean = {"T": ("level", np.arange(6) + 270.0), "SP": ((), 1e5), "TP": ((), 0.5)}
    std = {"T": ("level", np.arange(6) + 3.0), "SP": ((), 1e3), "TP": ((), 0.0)}
    xr.Dataset(mean).to_netcdf(tmp_path / "mean.nc")
    xr.Dataset(std).to_netcdf(tmp_path / "std.nc")
    return {
        "mean_path": str(tmp_path / "mean.nc"),
        "std_path": str(tmp_path / "std.nc"),
        "levels": [1, 2, 4, 6],
    }


@pytest.fixture
def mild_files(tmp_path):
    """Statistics of numbers near 1, which float32 normalizes without loss of digits."""
    mean = {"T": ("level", np.arange(4.0)), "SP": ((), 5.0), "TP": ((), 0.5)}
    std = {"T": ("level", np.arange(4.0) + 2), "SP": ((), 1.5), "TP": ((), 0.25)}
    xr.Dataset(mean).to_netcdf(tmp_path / "mild_mean.nc")
    xr.Dataset(std).to_netcdf(tmp_path / "mild_std.nc")
    return {key: str(tmp_path / f"mild_{key[:-5]}.nc") for key in PATHS}


@pytest.fixture
def batch(rng):
    """A batch of two samples; keys are in the insertion order of a data set."""
    draw = lambda levels: rng.normal(280, 9, (2, levels, 1, 3, 5)).astype(np.float32)  # noqa: E731
    return {
        "input": {"S": {TSI: draw(1), LSM: draw(1), T: draw(LEVELS), SP: draw(1)}},
        "target": {"S": {T: draw(LEVELS), SP: draw(1), TP: draw(1)}},
        "input_times": np.arange(2),
    }
