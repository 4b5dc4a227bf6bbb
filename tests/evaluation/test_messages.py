"""What is said of files of forecasts, truth and scores that do not fit."""

from functools import partial

import numpy as np
import xarray as xr

from credit_jax.evaluation.comparison import compare
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.mesh_sums import MeshSums, ScoreGrid
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.references import open_climatology
from credit_jax.evaluation.regions import REGIONS, choose_regions
from credit_jax.evaluation.scores import read_scores, write_scores
from credit_jax.evaluation.sums import ScoreSums
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import Variable, Variables, labeled_levels
from tests.evaluation.test_files import (
    DAYS,
    GRID,
    HOURS,
    LATITUDE,
    LONGITUDE,
    MONTHS,
    climatology,
)
from tests.evaluation.test_measures import mesh_of
from tests.evaluation.test_scores import forecast, some_scores, table, timed, winds
from tests.extensions.plots.stores import make_store, write_folder
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("evaluation")


# Grids and files.
def aligned(latitude, longitude):
    GRID.align(Variables("the truth", {}, latitude, longitude))


for _name, _grid in {
    "five rows": (LATITUDE[1:], LONGITUDE),
    "half a cell to the east": (LATITUDE, LONGITUDE + 18),
    "twice the points": (np.linspace(75, -75, 12), np.arange(20) * 18.0),
    "curvilinear": np.meshgrid(LATITUDE, LONGITUDE, indexing="ij"),
}.items():
    CASES.call(f"grid: {_name}", lambda own=_grid: aligned(*own))


def attribute(name):
    shape = {"latitude": 2, "longitude": 3, "level": 2, "band": 2}
    field = xr.Dataset({"T": (tuple(shape), np.zeros([*shape.values()]))})
    getattr(GridFile("f.nc", field), name)


CASES.rows(attribute, "variables", "latitude", name="a dim that is no level:")


def read(*dates, tmp_path, **labels):
    """What a climatology has for dates whose fields have the values of its labels."""
    opened = climatology(tmp_path, **labels)
    fields = [opened.read(np.datetime64(date, "ns"), {"SP": None}) for date in dates]
    return [f"{date}: {np.unique(x)}" for date, x in zip(dates, fields, strict=True)]


ORDERS = (HOURS, HOURS[::-1], [6, 18, 0, 12])
OF_HOURS = ("2000-02-03T07", "2000-12-31T07")
LEAP = ("2001-03-01", "2000-02-28", "2000-02-29", "2000-03-01", "2000-12-31")
for _name, _dates, _labels in (
    ("months", ("2001-01-31T18", "2001-12-01"), {"month": MONTHS}),
    ("hours of days", OF_HOURS, {"hour": HOURS, "dayofyear": DAYS}),
    *((f"hours {order}", OF_HOURS, {"hour": order}) for order in ORDERS),
    ("365 days", LEAP, {"dayofyear": DAYS[:-1]}),
    ("a month that is not there", ("2001-07-01",), {"month": [1, 2, 3]}),
    ("a month twice", (), {"month": [1, 1, 2], "values": [1, 2, 3]}),
    ("names of hours", (), {"hour": ["a", "b", "c"], "values": [1, 2, 3]}),
):
    CASES.call(f"climatology: {_name}", partial(read, *_dates, **_labels))


def without_labels(count, tmp_path):
    climatology(tmp_path, month=MONTHS[:count])
    with xr.open_dataset(tmp_path / "c.nc") as labeled:
        labeled.drop_vars("month").to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    opened = open_climatology(str(tmp_path / "d.nc"), OpenFiles())
    return f"{np.unique(opened.read(np.datetime64('2001-03-09', 'ns'), {'SP': None}))}"


CASES.rows(without_labels, 12, 3, name="months without labels")


# Forecasts.
@CASES.case
def a_folder_that_is_incomplete(tmp_path):
    folder = write_folder(make_store(0), tmp_path)
    (folder / "20040301_0000Z" / "2004-03-01_T1200Z.nc").unlink()
    return lambda: open_forecasts(str(folder))


CASES.rows(lambda name, tmp_path: open_forecasts(str(tmp_path / name)), "no.zarr", "")


@CASES.case
def a_store_without_lead_times(tmp_path):
    flat = make_store(0).isel(prediction_timedelta=0, drop=True)
    flat.to_zarr(tmp_path / "truth.zarr", consolidated=False)
    return lambda: open_forecasts(str(tmp_path / "truth.zarr"))


# Comparisons.
def compared(levels, *names, there=None):
    """Which levels of the truth those of the forecasts are, and notes."""
    found = forecast(levels, *names, there=there)
    both = found.to_truth
    pairs = [f"{k}: {both.levels[k]} are {both.other_levels[k]}" for k in both.levels]
    return [*pairs, *(channel.label for channel in found.channels), *found.notes]


CASES.rows(
    compared,
    ([500, 850],),
    ([500, 850], "T", "SP"),
    # Numbers, as where data.source.*.levels names none, in CREDIT's files and ours.
    ([0, 1, 2],),
    ([0, 1],),
    {"levels": [0, 2], "there": [0.0, 1.0, 2.0]},
    {"levels": [500, 850], "there": [850.0, 400.0]},
    {"levels": [500, 850], "there": [500.0]},
    name="levels",
)


def converted(ours, theirs, *levels):
    """A truth of 7 in the units of the forecasts, and notes."""
    found = winds(ours, theirs, *levels)
    (fields,) = found.persistence(np.datetime64(0, "ns")).values()
    values = [f"{value:.5g}" for value in np.unique(fields)]
    return [*values, f"{found.to_truth.other_levels}", *found.notes]


CASES.rows(
    converted,
    *(("m s-1", "m/s"), ("m s-1", "cm s-1"), ("1", "%"), ("", "m s-1"), ("K", "degC")),
    ("kg m-2 s-1", "mm day-1"),
    *(("W m-2", "J m-2"), ("mm", "mm day-1"), ("m/s", "blob")),
    # Levels without units are in pascal if they are large.
    ("m/s", "m/s", [500.0, 850.0, 5e4, 8.5e4]),
    name="units",
)


@CASES.case
def a_truth_without_times():
    reference = timed(["2001-01-01T00"])
    reference.file.dataset["SP"] = reference.file.dataset["SP"].isel(time=0)
    compare(table({"SP": Variable("SP")}), reference)


@CASES.case
def a_forecast_without_times():
    flat = {"SP": Variable("SP", constant=True)}
    compare(table(flat), timed(["2001-01-01T00"]))


@CASES.case
def a_time_that_occurs_twice():
    times = np.array(["2001-01-01T00", "2001-01-01T06"], "datetime64[ns]")
    timed([*times, times[0]]).problems(times, ["SP"])


# Scores.
CASES.call("a region", lambda: choose_regions(["atlantis"]))


@CASES.case
def members_that_do_not_run_side_by_side():
    MeshSums(mesh_of(2, 1, 1), ScoreGrid(LATITUDE, LONGITUDE, REGIONS[:1]), 6, 4)


def sums(date, name="rmse"):
    return ScoreSums((np.datetime64(date, "ns"),), {f"forecast/{name}": np.ones(3)})


CASES.rows(
    lambda *other: sums("2001-01-01").merge(sums(*other)),
    ("2001-01-01",),
    ("2002-01-01", "mae"),
    name="sums",
)
CASES.call("no scores", lambda tmp_path: lambda: read_scores(tmp_path))
for _name, _scores in {
    "an unknown metric": some_scores().rename(rmse="speed"),
    "dims in another order": some_scores().transpose("region", ...),
}.items():
    CASES.call(_name, lambda tmp_path, own=_scores: write_scores(own, tmp_path))

PRESSURES = [500.0, 850.0]
SIGMA = {"standard_name": "atmosphere_sigma_coordinate"}
CASES.rows(
    lambda levels, **own: labeled_levels(np.array(levels), own)[1] or "unknown",
    *({"levels": PRESSURES, "units": own} for own in ("hPa", "millibars", "Pa")),
    (PRESSURES,),
    {"levels": [10.0, 80.0], "units": "m"},
    {"levels": [0.25, 0.75], **SIGMA},
    {"levels": [0.25, 0.75], "units": "1"},
    {"levels": [0.0, 1.0, 2.0], "units": "hPa"},
    {"levels": [1.0, 2.0, 3.0], **SIGMA},
    name="unit of",
)
