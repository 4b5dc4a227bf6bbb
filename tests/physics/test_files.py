"""Files of constants: those in the package, and errors."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from credit_jax.physics.files import centers, read_arrays, read_coefficients, read_grid
from tests.physics import world


@pytest.mark.reference
@pytest.mark.parametrize("name", ["ERA5_Lev_Info.nc", "cesm_level_info.nc"])
def test_files_that_come_with_the_package(credit, name):
    import credit.metadata

    theirs = xr.open_dataset(Path(credit.metadata.__file__).parent / name)
    wanted = [str(key) for key in theirs.variables]
    wanted = [
        key for key in wanted if not {key} & {"time", "utc_date", "weight", "zero"}
    ]
    for key, ours in zip(wanted, read_arrays(name, wanted), strict=True):
        assert np.array_equal(ours, theirs[key].values), key


def test_levels_of_the_data():
    a, b = read_coefficients("ERA5_Lev_Info.nc", "a_half", "b_half")
    some = read_coefficients(
        "ERA5_Lev_Info.nc", "a_half", "b_half", (1, 5, 137), interfaces=True
    )
    assert np.array_equal(some[0], a[[0, 4, 136, 137]])
    assert np.array_equal(some[1], b[[0, 4, 136, 137]])
    middle = centers("ERA5_Lev_Info.nc", "a_half", "b_half", (137,))
    assert middle[0] == 0.5 * (a[136] + a[137])
    text = "a_half is of levels 1 to 137, but `levels` (counted from 1) asks for [0]"
    with pytest.raises(ValueError, match=re.escape(text)):
        centers("ERA5_Lev_Info.nc", "a_half", "b_half", (0,))


def test_errors_name_what_there_is(tmp_path):
    paths = world.write_files(tmp_path, 5)
    with pytest.raises(
        FileNotFoundError, match=r"come with it: ERA5_Lev_Info\.nc, cesm"
    ):
        read_arrays("ERA5_lev_info.nc", ["a_half"])
    with pytest.raises(ValueError, match="no variable hyam; there are: lon2d, lat2d"):
        read_arrays(paths["physics"], ["hyai", "hyam"])
    names = ["lon2d", "lat2d", "plev"]
    with pytest.raises(ValueError, match="expected longitude, latitude, a, b"):
        read_grid(paths["physics"], names, hybrid=True, midpoint=True)
    with pytest.raises(ValueError, match=r"plev, hyai, hybi have shapes .*; expected"):
        read_grid(
            paths["physics"],
            ["lon2d", "plev", "hyai", "hybi"],
            hybrid=True,
            midpoint=True,
        )
