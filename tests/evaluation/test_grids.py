"""Reordered and curvilinear grids, and climatologies from files."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.climatologies import open_climatology, training_climatology
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.mesh_sums import ScoreGrid
from credit_jax.evaluation.opening import grid_of
from credit_jax.evaluation.regions import REGIONS
from credit_jax.named_fields.variables import Variables, labeled_levels
from tests.evaluation.fields import random_fields, sums_of

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


@pytest.mark.parametrize(
    ("latitude", "longitude"),
    [
        (LATITUDE[1:], LONGITUDE),
        (LATITUDE, LONGITUDE + 18),
        (np.linspace(75, -75, 12), np.arange(20) * 18.0),
        np.meshgrid(LATITUDE, LONGITUDE, indexing="ij"),
    ],
)
def test_another_grid(latitude, longitude):
    with pytest.raises(ValueError, match=r"the truth: .*, but in the forecast .*tude"):
        GRID.align(Variables("the truth", {}, latitude, longitude))


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
    worst = np.max(np.abs(own[..., 0] / expected - 1))
    print(f"64800 points: {worst:.1e}")
    assert worst < 5e-7


def test_climatology_by_month_and_by_hour(tmp_path):
    """The field is that of the month, or of the last hour before the time."""
    space = {"latitude": LATITUDE, "longitude": LONGITUDE}
    month = xr.DataArray(np.arange(1, 13), dims="month")
    fields = xr.ones_like(xr.DataArray(given(LATITUDE, LONGITUDE), coords=space))
    monthly = xr.Dataset({"SP_mean": month * fields}, coords={"month": month.values})
    monthly.to_netcdf(tmp_path / "month.nc", engine="h5netcdf")
    found = open_climatology(str(tmp_path / "month.nc"))
    for date, value in (("2001-01-31T18", 1), ("2001-12-01", 12)):
        read = found.read(np.datetime64(date, "ns"), {"SP": None})
        assert read.shape == (1, 6, 10)
        assert np.all(read == value)
    hours = xr.DataArray([0, 6, 12, 18], dims="hour", coords={"hour": [0, 6, 12, 18]})
    days = xr.DataArray(np.arange(1, 367), dims="dayofyear")
    days = days.assign_coords(dayofyear=days.values)
    both = ((100 * days + hours) * fields).expand_dims(level=[500.0])
    both.astype(np.float32).to_dataset(name="T").to_netcdf(
        tmp_path / "hour.nc", engine="h5netcdf"
    )
    found = open_climatology(str(tmp_path / "hour.nc"))
    for date, value in (("2000-02-03T07", 3406), ("2000-12-31T07", 36606)):
        read = found.read(np.datetime64(date, "ns"), {"T": (0,)})
        assert np.all(read == value)


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
    found = training_climatology(NamedData(data), lambda reference: {"SP": None})
    assert [str(t)[5:10] for t in found.times] == ["02-27", "02-28", "03-01", "03-02"]
    means = found.read(np.datetime64("2000-04-15", "ns"), {"SP": None})
    assert np.all(means == 3.5), "of 1 and 2 March"


def test_dims_that_are_no_level():
    shape = {"latitude": 2, "longitude": 3, "level": 2, "band": 2}
    field = xr.Dataset({"T": (tuple(shape), np.zeros([*shape.values()]))})
    with pytest.raises(ValueError, match="dims level, band besides latitude, "):
        GridFile("f.nc", field).variables  # noqa: B018
    with pytest.raises(ValueError, match="no coordinate latitude or lat; it has T"):
        GridFile("f.nc", field).latitude  # noqa: B018


@pytest.mark.parametrize(
    ("levels", "attributes", "units"),
    [
        ([500.0, 850.0], {"units": "hPa"}, "hPa"),
        ([500.0, 850.0], {"units": "millibars"}, "hPa"),
        ([500.0, 850.0], {"units": "Pa"}, "hPa"),
        ([500.0, 850.0], {}, ""),
        ([10.0, 80.0], {"units": "m"}, "m"),
        ([0.25, 0.75], {"standard_name": "atmosphere_sigma_coordinate"}, "sigma"),
        ([0.25, 0.75], {"units": "1"}, ""),
        ([0.0, 1.0, 2.0], {"units": "hPa"}, ""),
        ([1.0, 2.0, 3.0], {"standard_name": "atmosphere_sigma_coordinate"}, ""),
    ],
)
def test_units_of_levels(levels, attributes, units):
    assert labeled_levels(np.array(levels), attributes)[1] == units


def test_a_file_knows_the_units_of_its_levels():
    """Pressures in Pa are given in hPa."""
    coords = {"level": ("level", [50000.0, 85000.0], {"units": "Pa"})}
    coords |= {"latitude": LATITUDE, "longitude": LONGITUDE}
    field = ("level", "latitude", "longitude"), np.zeros((2, 6, 10))
    found = GridFile("a.nc", xr.Dataset({"T": field}, coords)).variables["T"]
    assert found.levels.tolist() == [500.0, 850.0]
    assert found.level_units == "hPa"


@pytest.mark.parametrize("order", [[0, 6, 12, 18], [18, 12, 6, 0], [6, 18, 0, 12]])
def test_hours_of_a_climatology_in_any_order(tmp_path, order):
    found = written(tmp_path, "hour", order, order)
    for hour in (0, 6, 12, 18):
        time = np.datetime64(f"2001-01-01T{hour:02d}", "ns")
        assert np.all(found.read(time, {"SP": None}) == hour)


def written(folder, dim, values, labels):
    """Opens a climatology whose fields have the values of their labels."""
    field = xr.DataArray(
        np.ones((6, 10)), {"latitude": LATITUDE, "longitude": LONGITUDE}
    )
    field = field.expand_dims({dim: len(values)}) * xr.DataArray(values, dims=dim)
    dataset = field.astype(np.float32).to_dataset(name="SP")
    if labels is not None:
        dataset = dataset.assign_coords({dim: labels})
    dataset.to_netcdf(folder / "given.nc", engine="h5netcdf")
    return open_climatology(str(folder / "given.nc"))


def test_months_without_labels(tmp_path):
    found = written(tmp_path, "month", np.arange(1, 13), None)
    assert np.all(found.read(np.datetime64("2001-03-09", "ns"), {"SP": None}) == 3)


def test_days_of_a_year_of_365(tmp_path):
    days = np.arange(1, 366)
    found = written(tmp_path, "dayofyear", days, days)
    for date, day in (
        ("2001-03-01", 60),
        ("2000-02-28", 59),
        ("2000-02-29", 59),
        ("2000-03-01", 60),
        ("2000-12-31", 365),
    ):
        assert np.all(found.read(np.datetime64(date, "ns"), {"SP": None}) == day), date


@pytest.mark.parametrize(
    ("dim", "labels", "text"),
    [
        ("month", None, "the dim month of size 3 has no coordinate"),
        ("month", [1, 1, 2], "the labels of month are 1, 1, 2, expected different"),
        ("hour", ["a", "b", "c"], "the labels of hour are a, b, c"),
    ],
)
def test_labels_that_are_unknown(tmp_path, dim, labels, text):
    with pytest.raises(ValueError, match=text):
        written(tmp_path, dim, [1, 2, 3], labels)


def test_a_label_that_is_not_there_is_an_error(tmp_path):
    found = written(tmp_path, "month", [1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="has no month 7 of 2001-07-01T00:00"):
        found.read(np.datetime64("2001-07-01", "ns"), {"SP": None})
