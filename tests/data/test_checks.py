"""What is refused before anything is compiled, and NaN in a batch."""

import numpy as np
import pytest
import xarray as xr

from tests.data.damaged import load, refused, rewrite
from tests.data.world import (
    FLAT,
    GRID,
    save,
)


def test_variable_missing_in_a_later_file(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.drop_vars("SP"))
    refused(folder, "w_2000.nc: no variable 'SP'")


def test_missing_times(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.isel(time=[0, 1, 2, 5, 6, 7]))
    refused(
        folder,
        "variables.prognostic: 11 of 33 times are missing",
        "2000-01-01T18:00, 2000-01-02T00:00",
        "1999-12-25T00:00 to 2000-01-02T18:00 (2 files)",
    )


def test_missing_year(folder):
    (folder / "w_2000.nc").rename(folder / "w_2001.nc")
    refused(folder, "times are missing", "2000-01-01T00:00")


def test_wrong_grid(folder):
    refused(
        folder,
        "a grid of 6 x 10",
        "image_height 8 x image_width 10",
        grid=(8, 10),
    )


def test_grids_of_two_files(folder):
    mask = (FLAT[1:], np.zeros((6, 10)))
    upside = {**GRID, "latitude": GRID["latitude"][::-1]}
    save(xr.Dataset({"LSM": mask}, coords=upside), folder / "static.nc")
    refused(folder, "latitude runs from -75 to 75", "one is upside down")


def test_nan_in_the_first_sample(folder):
    def damage(dataset):
        dataset["T"][12, 2, 0, :3] = np.nan
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    refused(
        folder,
        "T (level 2 of 2) of the input",
        "1999-12-28T00:00 has 3 of 60 values",
    )


def test_nan_later_is_found_when_it_is_read(folder):
    def damage(dataset):
        dataset["TP"][4] = np.inf
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    loader = load(folder, trainer__thread_workers=2)
    with pytest.raises(ValueError, match=r"TP of the target.*has 60 of 60 values"):
        list(loader.epoch(0))
