"""Forecasts of stores and folders, climatologies, and grids in another order."""

from datetime import datetime

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.forecast_files import valid_time
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.mesh_sums import ScoreGrid
from credit_jax.evaluation.opening import grid_of, open_forecasts
from credit_jax.evaluation.references import open_climatology, training_climatology
from credit_jax.evaluation.regions import REGIONS
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import Variables
from tests.evaluation.fields import random_fields, sums_of
from tests.extensions.plots.stores import STARTS, make_store, write_folder

HOUR = np.timedelta64(1, "h")
WANTED = {"SP": None, "T": (1, 0)}


def assert_forecasts(found, store, members, leads=(1, 2)):
    """All members of SP and of both levels of T, the second level first."""
    assert found.num_members == (members or 1)
    assert np.array_equal(found.starts, np.atleast_1d(store["time"]))
    assert np.array_equal(found.leads / HOUR, 6 * np.array(leads)), "above 0"
    for start in range(len(found.starts)):
        for position, lead in enumerate(leads):
            own = store.expand_dims([d for d in ("time",) if d not in store.dims])
            own = own.isel(time=start, prediction_timedelta=lead)
            own = own if members else own.expand_dims("number")
            deep = own["T"].isel(level=[1, 0]).transpose("number", "level", ...)
            flat = own["SP"].transpose("number", ...).values[:, None]
            expected = np.concatenate([flat, deep.values], axis=1)
            assert np.array_equal(found.read(start, position, WANTED), expected)


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("forecast.zarr", {}),
        ("other.zarr", {"time": "init_time", "prediction_timedelta": "lead_time"}),
        ("f.zarr", {"latitude": "lat", "longitude": "lon", "number": "realization"}),
    ],
)
def test_stores(tmp_path, names, folder):
    make_store(**names).to_zarr(tmp_path / folder, consolidated=False)
    is_default = folder == "forecast.zarr"
    found = open_forecasts(str(tmp_path if is_default else tmp_path / folder))
    assert_forecasts(found, make_store(), 2)
    variables = found.grid.variables
    assert set(variables) == {"T", "SP"}
    assert variables["SP"].levels is None
    assert np.array_equal(variables["T"].levels, [500, 850])


@pytest.mark.parametrize(
    ("unit", "factor"), [("hours", 1), ("D", 1 / 24), ("milliseconds", 3_600_000)]
)
def test_a_file_whose_lead_times_are_numbers(tmp_path, unit, factor):
    """Longitude is before latitude, as in WeatherBench's own stores."""
    store = make_store(0)
    hours = store.assign_coords(prediction_timedelta=np.array([0, 6, 12]) * factor)
    hours["prediction_timedelta"].attrs["units"] = unit
    hours = hours.transpose(..., "longitude", "latitude")
    hours.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    assert_forecasts(open_forecasts(str(tmp_path / "f.nc")), store, 0)


def test_one_start_date_and_lead_time_and_a_constant(tmp_path):
    store = make_store(0).isel(time=0)
    store["LSM"] = store["SP"].isel(prediction_timedelta=0, drop=True)
    path = tmp_path / "f.nc"
    store.isel(prediction_timedelta=1).drop_vars("LSM").to_netcdf(path)
    assert_forecasts(open_forecasts(str(path)), store, 0, (1,))
    store.to_zarr(tmp_path / "f.zarr", consolidated=False)
    variables = open_forecasts(str(tmp_path / "f.zarr")).grid.variables
    assert [name for name, x in variables.items() if x.constant] == ["LSM"]


@pytest.mark.slow(but=["standard-False-2", "noleap-True-0"])
@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_folders(tmp_path, members, group, calendar):
    store = make_store(members)
    folder = write_folder(store, tmp_path / "out", calendar, group)
    found = open_forecasts(str(folder))
    assert found.calendar == calendar
    assert_forecasts(found, store, members)
    assert valid_time(found, 0, 1) == np.datetime64("2004-02-28T12")


@pytest.mark.parametrize(
    ("path", "times", "hours"),
    [
        # Two days after 28 February are 2 March without a leap day.
        ("20040228_0000Z/full.nc", "noleap", 48),
        ("2004-02-28T00Z/pred_2004-02-28T00Z_006.nc", [datetime(2004, 2, 28, 6)], 6),
    ],
)
def test_dates_of_folders(tmp_path, path, times, hours):
    if times == "noleap":
        options = {"periods": 1, "calendar": "noleap", "use_cftime": True}
        times = xr.date_range("2004-03-02", **options)
    coords = {"time": times, "latitude": [0.0, 1.0], "longitude": [0.0, 1.0]}
    field = (tuple(coords), np.ones((1, 2, 2), np.float32))
    (tmp_path / path).parent.mkdir()
    xr.Dataset({"SP": field}, coords).to_netcdf(tmp_path / path, engine="h5netcdf")
    found = open_forecasts(str(tmp_path))
    assert np.array_equal(found.starts, STARTS[:1])
    assert np.array_equal(found.leads / HOUR, [hours])
    assert found.read(0, 0, {"SP": None}).shape == (1, 1, 2, 2)


LATITUDE, LONGITUDE = np.linspace(75, -75, 6), np.arange(10) * 36.0
GRID = Variables("the forecast", {}, LATITUDE, LONGITUDE)


def given(latitude, longitude):
    """Returns a field whose values are functions of the coordinates."""
    return np.add.outer(1000 * latitude, longitude % 360)


@pytest.mark.parametrize(
    ("latitude", "longitude"),
    [
        (LATITUDE, LONGITUDE),
        (LATITUDE[::-1], LONGITUDE),
        (LATITUDE, LONGITUDE - 180),
        (LATITUDE[::-1], (LONGITUDE[::-1] + 1e-3)),
    ],
)
def test_another_order(latitude, longitude):
    other = Variables("the truth", {}, latitude, longitude)
    found = GRID.align(other)(given(latitude, longitude))
    assert np.allclose(found, given(LATITUDE, LONGITUDE), atol=1e-2)


def test_a_curvilinear_grid():
    """2-D coordinates give the same results as coordinates of rows and columns."""
    forecast, references = random_fields(LATITUDE, 10, 2)
    rows = sums_of(forecast, references, ScoreGrid(LATITUDE, LONGITUDE, REGIONS))
    points = grid_of(*np.meshgrid(LATITUDE, LONGITUDE, indexing="ij"), REGIONS)
    assert points.bands == (), "no circles of latitude"
    assert grid_of(LATITUDE, LONGITUDE, REGIONS).bands
    assert not grid_of(LATITUDE, LONGITUDE[:5], REGIONS).bands, "part of the globe"
    uneven = np.concatenate([[0.015], LONGITUDE[1:]])
    assert not grid_of(LATITUDE, uneven, REGIONS).bands, "steps that differ"
    found = sums_of(forecast, references, points)
    assert all(np.array_equal(found[name], own) for name, own in rows.items())


def test_rounding_does_not_grow_with_the_grid():
    latitude, longitude = np.linspace(89.5, -89.5, 180), np.arange(360) * 1.0
    grid = ScoreGrid(latitude, longitude, REGIONS[:1])
    forecast, references = random_fields(latitude, 360, 1)
    found = sums_of(forecast, references, grid)
    error = forecast[:, 0].astype(float) - references["truth"].astype(float)
    weights = np.cos(np.deg2rad(latitude))[:, None]
    expected = (error**2 * weights).sum(axis=(2, 3)) / (weights.sum() * 360)
    own = found["forecast/squared"] / found["forecast/weight"]
    assert np.max(np.abs(own[..., 0] / expected - 1)) < 5e-7


def climatology(folder, *, values=None, **labels):
    """Opens a climatology whose fields have the values of their labels."""
    space = {"latitude": LATITUDE, "longitude": LONGITUDE}
    field = xr.DataArray(np.ones((6, 10)), space, [*space])
    factor = sum(
        scale * xr.DataArray(own if values is None else values, {dim: own}, [dim])
        for scale, (dim, own) in zip((1, 100), labels.items(), strict=False)
    )
    dataset = (factor * field).astype(np.float32).to_dataset(name="SP_mean")
    dataset.to_netcdf(folder / "c.nc", engine="h5netcdf")
    return open_climatology(str(folder / "c.nc"), OpenFiles())


DAYS, HOURS, MONTHS = np.arange(1, 367), [0, 6, 12, 18], np.arange(1, 13)


def test_climatology_of_training_data_in_another_calendar(tmp_path):
    """Their period has no 29 February, and its dates may name UTC."""
    noleap = {"calendar": "noleap", "use_cftime": True}
    times = xr.date_range("2000-02-26", "2000-03-03", freq="1D", **noleap)
    days = xr.DataArray(np.arange(len(times)), coords={"time": times}, dims="time")
    space = {"latitude": LATITUDE, "longitude": LONGITUDE}
    field = xr.DataArray(np.ones((6, 10)), coords=space, dims=[*space])
    fields = (days * field).astype(np.float32)
    fields.to_dataset(name="SP").to_netcdf(tmp_path / "w.nc", engine="h5netcdf")
    raw = {
        "source": {
            "ERA5": {
                "dataset_type": "local",
                "variables": {
                    "prognostic": {"vars_2D": ["SP"], "path": str(tmp_path / "w.nc")}
                },
            }
        },
        "start_datetime": "2000-02-27T00Z",
        "end_datetime": "2000-03-02",
        "timestep": "24h",
        "history_len": 1,
        "forecast_len": 1,
    }
    data = parse(DataConfig, raw, "data")
    found = training_climatology(
        NamedData(data), lambda reference: {"SP": None}, OpenFiles()
    )
    assert [str(t)[5:10] for t in found.times] == ["02-27", "02-28", "03-01", "03-02"]
    means = found.read(np.datetime64("2000-04-15", "ns"), {"SP": None})
    assert np.all(means == 3.5), "of 1 and 2 March"


def test_a_file_knows_the_units_of_its_levels():
    """Pressures in Pa are given in hPa."""
    coords = {"level": ("level", [50000.0, 85000.0], {"units": "Pa"})}
    coords |= {"latitude": LATITUDE, "longitude": LONGITUDE}
    field = ("level", "latitude", "longitude"), np.zeros((2, 6, 10))
    found = GridFile("a.nc", xr.Dataset({"T": field}, coords)).variables["T"]
    assert found.levels.tolist() == [500.0, 850.0]
    assert found.level_units == "hPa"
