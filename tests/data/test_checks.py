"""Errors in data raised before compilation: variables, times, grids, units."""

import numpy as np
import pytest
import xarray as xr

from tests.data.damaged import refused, rewrite
from tests.data.world import (
    FLAT,
    GRID,
    raw_config,
    save,
    write_world,
)


def test_variable_missing_in_a_later_file(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.drop_vars("SP"))
    refused(folder, "w_2000.nc: variable 'SP' is not available")


def test_missing_times(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.isel(time=[0, 1, 2, 5, 6, 7]))
    refused(
        folder,
        "variables.prognostic: 11 of 33 times are missing",
        "2000-01-01T18:00, 2000-01-02T00:00",
        "1999-12-25T00:00 to 2000-01-02T18:00 (2 files)",
        "or the time step of the files (data.source.ERA5.timestep)",
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


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (
            lambda d: d.isel(latitude=slice(None, None, -1)),
            ("w_2000.nc: U: latitude runs from ", "w_1999.nc: U from", "upside down"),
        ),
        (
            lambda d: d.isel(longitude=slice(1, None)),
            ("w_2000.nc: U has a grid of 6 x 9, but ", "w_1999.nc: U has 6 x 10; "),
        ),
    ],
)
def test_grids_of_two_files_of_a_variable(folder, change, texts):
    rewrite(folder / "w_2000.nc", change)
    refused(folder, *texts)


def test_text_in_place_of_numbers(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.assign(SP=d["SP"].astype(str)))
    refused(folder, "w_1999.nc: variable 'SP' is of dtype <U", "expected numbers")


def test_units_of_two_files(folder):
    for year, unit in ((1999, "Pa"), (2000, "hPa")):
        change = {"units": unit}
        rewrite(
            folder / f"w_{year}.nc",
            lambda d, change=change: d.assign(SP=d["SP"].assign_attrs(change)),
        )
    refused(folder, "'SP' has units 'hPa', but in", "'Pa'; bring all files to one")


def with_units(folder, **units):
    """Sets units of variables in the data or in the file of means."""
    for name in ("w_1999.nc", "w_2000.nc", "mean.nc"):
        own = {k: u[name == "mean.nc"] for k, u in units.items()}

        def name_them(dataset, own=own):
            made = {k: dataset[k].assign_attrs(units=u) for k, u in own.items() if u}
            return dataset.assign(made)

        rewrite(folder / name, name_them)


def test_units_of_the_means(folder):
    with_units(folder, SP=("hPa", "Pa"), T=("K", "kelvin"), U=("m s**-1", "m/s"))
    refused(
        folder,
        "w_1999.nc: variable 'SP' has units 'hPa', but preblocks.per_step.norm has a",
        "mean.nc and",
        "in 'Pa'; bring the file to that unit",
    )


def test_units_of_a_formula(folder):
    """Also for a variable that an earlier block renames."""
    with_units(folder, SP=("mbar", None), T=("degrees_C", None))
    old, new = "ERA5/prognostic/2d/SP", "ERA5/prognostic/2d/PS"
    args = {"surface_pressure_var": new, "temperature_var": "ERA5/prognostic/3d/T"}
    blocks = {"sea": {"type": "mslp_diagnostic", "args": args}}
    rename = {"type": "rename", "args": {"mapping": {old: new}}}
    changes = {"postblocks__per_step": blocks, "preblocks__ic_only": {"names": rename}}
    text = (
        "'SP' has units 'mbar', but postblocks.per_step.sea.args.surface_pressure_var"
    )
    refused(folder, text, "takes 'Pa'", **changes)


@pytest.mark.parametrize(
    ("years", "text"),
    [
        (3000 - 1999, "w_1999.nc: has times in the year 3000, outside of 1678 to 2261"),
        (100 - 1999, "w_1999.nc: has times in the year 100, outside of 1678 to 2261"),
    ],
)
def test_times_outside_of_datetime64(folder, years, text):
    def move(dataset):
        start = f"{1999 + years:04d}-12-25"
        count = dataset.sizes["time"]
        times = xr.date_range(start, periods=count, freq="6h", use_cftime=True)
        return dataset.assign_coords(time=times)

    rewrite(folder / "w_1999.nc", move)
    refused(folder, text)


def test_times_without_a_unit(folder):
    def move(dataset):
        count = dataset.sizes["time"]
        return dataset.assign_coords(time=np.arange(count, dtype=np.int64))

    rewrite(folder / "w_1999.nc", move)
    refused(folder, "the time coordinate holds int64 (0, ...) and no dates")


def test_360_day_calendar(folder):
    def move(dataset):
        times = xr.date_range(
            "1999-12-25",
            periods=dataset.sizes["time"],
            freq="6h",
            calendar="360_day",
            use_cftime=True,
        )
        return dataset.assign_coords(time=times)

    rewrite(folder / "w_1999.nc", move)
    refused(folder, "calendar '360_day', which is not available", "30 February")


def test_truncated_chunk(tmp_path):
    write_world(tmp_path, kind="zarr")
    chunk = sorted((tmp_path / "w_1999.zarr" / "SP").glob("[0-9]*"))[0]
    chunk.write_bytes(chunk.read_bytes()[:-20])
    raw = raw_config(tmp_path, "zarr")
    refused(
        tmp_path,
        "w_1999.zarr: variable 'SP' at 1999-12-28",
        "cannot be read",
        raw=raw,
    )


def test_truncated_file(folder):
    path = folder / "w_1999.nc"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(folder, "w_1999.nc: cannot be opened", "is it complete?")
