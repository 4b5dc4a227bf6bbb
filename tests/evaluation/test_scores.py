"""Scores of forecasts, and comparisons of them."""

import tracemalloc

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.evaluation.comparison import compare
from credit_jax.evaluation.forecast_files import valid_times
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.opening import (
    ScoreOptions,
    dims_of_scores,
    grid_of,
    open_comparison,
    open_forecasts,
    score_files,
)
from credit_jax.evaluation.references import FileReference
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.scores import (
    BAND,
    DIMS,
    WAVENUMBER,
    _as_text,
    other_scores,
    read_scores,
    score_table,
    to_table,
    write_scores,
)
from credit_jax.evaluation.sums import ScoreSums
from credit_jax.io.netcdf import attribute_value
from credit_jax.named_fields.variables import Variable, Variables
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.training.display import print_table
from tests.extensions.plots.synthetic import make_scores

LEADS = np.array([6, 12], "timedelta64[h]").astype("timedelta64[ns]")


def some_scores() -> xr.Dataset:
    rng = np.random.default_rng(0)
    rmse, spectrum = rng.random((2, 2, 1, 2)), rng.random((2, 2, 1, 2, 4))
    rmse[1, 0, 0, 0] = np.nan
    coords = {
        "system": ["forecast", "persistence"],
        "channel": ["T500", "t2m"],
        "variable": ("channel", ["T", "t2m"]),
        "level": ("channel", [500.0, np.nan]),
        "units": ("channel", ["K", "K"]),
        "long_name": ("channel", ["temperature", ""]),
        "region": ["global"],
        "prediction_timedelta": LEADS,
        BAND: ["global"],
        WAVENUMBER: np.arange(4),
    }
    arrays = {
        "rmse": (DIMS, rmse),
        "acc": (DIMS, 1 - rmse),
        "energy_spectrum": (("system", "channel", BAND, DIMS[3], WAVENUMBER), spectrum),
    }
    return xr.Dataset(arrays, coords, {"num_members": 1})


def test_scores_are_written_and_read(tmp_path):
    scores = some_scores()
    path, table = write_scores(scores, tmp_path / "report")
    for place in (path, tmp_path / "report"):
        xr.testing.assert_identical(read_scores(place), scores)
    rows = pd.read_csv(table)
    assert len(rows) == 14, "two metrics of eight values, one of each missing"
    own = rows.query("metric == 'acc' and system == 'forecast' and channel == 'T500'")
    assert own["lead_hours"].tolist() == [6, 12]
    assert own["level"].tolist() == [500, 500]
    assert own["level_units"].isna().all(), "unknown"
    named = scores.assign_coords(level_units=("channel", ["hPa", ""]))
    assert set(to_table(named).query("channel == 'T500'")["level_units"]) == {"hPa"}
    assert own["units"].astype(str).tolist() == ["1", "1"]
    assert np.allclose(own["value"], scores["acc"][0, 0, 0], rtol=1e-6)


def test_names_are_no_formulas():
    cells = {"=cmd|' /C x'!A0": "'=cmd|' /C x'!A0", "T\x1b[2J": "T\\x1b[2J"}
    cells |= {"T500": "T500", -1.5: -1.5}
    assert {cell: _as_text(cell) for cell in cells} == cells


def test_scores_of_other_forecasts_are_seen(tmp_path):
    scores = some_scores()
    about = {"forecast": str(tmp_path / "f"), "truth": "t.nc"}
    assert other_scores(tmp_path, about) == "", "there are none"
    write_scores(scores.assign_attrs(about), tmp_path)
    assert other_scores(tmp_path, about) == ""
    store = {**about, "forecast": str(tmp_path / "f/forecast.zarr")}
    assert other_scores(tmp_path, store) == "", "of the same forecasts"
    assert "truth: t.nc" in other_scores(tmp_path, {**about, "truth": "u.nc"})
    assert "forecast: " in other_scores(tmp_path, {**about, "forecast": "g"})
    (tmp_path / "scores.nc").unlink()
    assert "scores.csv" in other_scores(tmp_path, about)


def test_attributes_of_every_kind_can_be_written(tmp_path):
    """NetCDF has no booleans: the record of the forecast of a training has one."""
    values = {"report": True, "dates": [["a", "b"]], "no": None, "count": 3}
    attributes = {name: attribute_value(value) for name, value in values.items()}
    write_scores(some_scores().assign_attrs(attributes), tmp_path)
    written = read_scores(tmp_path).attrs
    expected = {"report": "true", "dates": '[["a", "b"]]', "no": "null", "count": 3}
    assert {name: written[name] for name in expected} == expected


def printed(scores):
    console = Console(width=20)
    with console.capture() as text:
        print_table(score_table(scores), console)
    return text.get().splitlines()


def test_numbers_have_units_and_say_over_how_many_levels_they_are():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=2)
    title = "RMSE, global, 12 start dates"
    assert score_table(scores).title == f"{title}; root mean square over the levels"
    units = scores["units"].astype(object)
    units[scores["variable"] == "U"] = "m s**-1"
    lines = printed(scores.assign_coords(units=units))
    assert any("m s⁻¹" in line for line in lines)
    heads = [line[:13].strip() for line in lines]
    assert heads[heads.index("T") + 1 :][:2] == ["K", "3 levels"]
    assert heads[heads.index("SP") + 1 :][:2] == ["Pa", ""], "one level"
    only = printed(scores.sel(system=["forecast"]))
    assert any(line.startswith("  T, K, 3 levels") for line in only)
    own = scores["rmse"].sel(system="forecast", region="global")
    mean = np.sqrt((own.sel(channel=["T250", "T500", "T850"]) ** 2).mean("channel"))
    expected = [f"{float(f'{value:.3g}'):g}" for value in mean.values]
    assert lines[heads.index("T")].split()[-4:] == expected


def test_titles_and_names_of_a_table():
    """Dates of the training are said to be so; names are neither markup nor escapes."""
    scores = make_scores(levels=(500.0,), num_days=1)
    plain = "RMSE, global, 12 start dates"
    assert score_table(scores).title == plain
    for seen in ("none", "unknown"):
        assert score_table(scores.assign_attrs(training_dates=seen)).title == plain
    seen = "5 of 9 dates are in the training period (2000 to 2001), and not held out"
    title = score_table(scores.assign_attrs(training_dates=seen)).title
    assert title == f"{plain}; {seen}"
    assert set(to_table(scores)["training_dates"]) == {"unknown"}
    table = to_table(scores.assign_attrs(training_dates=seen))
    assert set(table["training_dates"]) == {"5 of 9 dates"}
    hostile = "[/]\x1b[2J[bold]T"
    names = [hostile if name == "T" else name for name in scores["variable"].values]
    scores = scores.assign_coords(variable=("channel", names))
    (line,) = [line for line in printed(scores) if "[bold]T" in line]
    assert "[/]\\x1b[2J[bold]T" in line
    assert "\x1b" not in line


SPACE = {"latitude": [45.0, -45.0], "longitude": [0.0, 120.0, 240.0]}


def reference(fields, **coords):
    """A truth with fields over the coordinates and SPACE."""
    coords = {**coords, **SPACE}
    shape = [len(values) for values in coords.values()]
    made = xr.DataArray(np.zeros(shape), coords, [*coords])
    dataset = xr.Dataset({name: made + field for name, field in fields.items()})
    return FileReference(GridFile("truth.nc", dataset, ("time",), ("time",)), "time")


def truth(levels):
    epoch = [np.datetime64(0, "ns")]
    found = reference({"T": 0.0, "U": 0.0}, time=epoch, level=levels)
    found.file.dataset["SP"] = found.file.dataset["T"].isel(level=0, drop=True)
    return found


def timed(times):
    times = np.array(times, "datetime64[ns]")
    index = xr.DataArray(np.arange(len(times), dtype=float), {"time": times}, ["time"])
    return reference({"SP": index}, time=times)


def forecast(levels, *names, there=None):
    known = {name: Variable(name) for name in ("T", "U", "SP", "TP")}
    known |= {name: Variable(name, np.array(levels, float)) for name in ("T", "U")}
    there = there or ([0.25, 0.5, 0.75] if max(levels) < 5 else [850.0, 500.0])
    return compare(table(known), truth(there), names)


def table(known):
    space = (np.array(values) for values in SPACE.values())
    return Variables("the forecast", known, *space)


def winds(ours, theirs, levels=(500.0, 850.0)):
    """Forecasts of 7 in a unit, in hPa, compared with a truth of 7 in another."""
    reference = truth(list(levels))
    reference.file.dataset["U"].attrs["units"] = theirs
    reference.file.dataset["U"][...] = 7.0
    levels = np.array([500.0, 850.0])
    deep = Variable("U", levels, units=ours, level_units="hPa")
    return compare(table({"U": deep}), reference)


def test_rounded_times_of_a_truth_are_read_with_a_note():
    given = timed(["2001-01-01T06:00:14", "2001-01-01T00:00:00"])
    times = np.array(["2001-01-01T00", "2001-01-01T06"], "datetime64[ns]")
    assert given.problems(times, ["SP"]) == []
    assert np.all(given.read(times[1], {"SP": None}) == 0)
    (note,) = given.notes(times)
    assert "rounded, by up to 14 s" in note
    assert given.problems(times + np.timedelta64(1, "h"), ["SP"])


NUM_LAT, NUM_LON, NUM_LEVELS, NUM_MEMBERS = 48, 96, 6, 3
SPACE_OFFLINE = {
    "latitude": np.linspace(88, -88, NUM_LAT),
    "longitude": np.arange(NUM_LON) * 360 / NUM_LON,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stores of forecasts of 2 and of 12 lead times, and the truth."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    hour = np.timedelta64(1, "h")
    levels = np.arange(NUM_LEVELS, dtype=float)
    starts = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
    times = starts[0] + 6 * np.arange(17) * hour
    coords = {"time": times, "level": levels, **SPACE_OFFLINE}
    shape = [len(values) for values in coords.values()]
    truth = xr.Dataset({"T": ([*coords], rng.normal(size=shape).astype("f4"))}, coords)
    truth.to_zarr(folder / "truth.zarr", consolidated=False)
    for count in (2, 12):
        leads = (6 * np.arange(1, count + 1) * hour).astype("m8[ns]")
        coords = {"time": starts, "number": np.arange(NUM_MEMBERS)}
        coords |= {"prediction_timedelta": leads, "level": levels, **SPACE_OFFLINE}
        shape = [len(values) for values in coords.values()]
        values = rng.normal(size=shape).astype("f4")
        store = xr.Dataset({"T": ([*coords], values)}, coords)
        chunks = {"T": {"chunks": (1, 1, 1, *shape[3:])}}
        store.to_zarr(folder / f"{count}.zarr", consolidated=False, encoding=chunks)
    return folder


def score(folder, count, **options):
    """Returns the sums and scores of a store."""
    files = open_forecasts(str(folder / f"{count}.zarr"))
    given = ScoreOptions(str(folder / "truth.zarr"), "none")
    comparison = open_comparison(given, files.grid.table, valid_times(files))
    grid = grid_of(files.grid.latitude, files.grid.longitude, REGIONS[:2])
    sums = score_files(files, comparison, grid, **options)
    members = options.get("num_members") or files.num_members
    return sums, dims_of_scores(comparison, grid, files.leads, members).scores(sums)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lead_time(folder):
    peaks = {}
    for count in (2, 12, 2):
        tracemalloc.start()
        sums, _ = score(folder, count)
        kept = sum(x.nbytes for x in sums.arrays.values())
        peaks[count] = tracemalloc.get_traced_memory()[1] - 4 * kept
        tracemalloc.stop()
    lead = 4 * NUM_MEMBERS * NUM_LEVELS * NUM_LAT * NUM_LON
    assert peaks[12] < peaks[2] + 2 * lead


def test_on_a_mesh(folder):
    """Rows are split over three devices, forecasts over two data-parallel ranks."""
    dims = ParallelDims(dp_replicate=2, domain=3, world_size=6)
    one, _ = score(folder, 2)
    many, _ = score(folder, 2, mesh=dims.build_mesh(jax.devices()[:6]))
    for name in ("forecast/squared", "forecast/crps", "members/power", "truth/power"):
        assert np.max(np.abs(many.arrays[name] / one.arrays[name] - 1)) < 1e-6


def test_the_first_members(folder):
    _, whole = score(folder, 2)
    sums, one = score(folder, 2, num_members=1)
    assert "crps" in whole
    assert "crps" not in one
    assert one.attrs["num_members"] == 1
    with xr.open_zarr(folder / "2.zarr", consolidated=False) as store:
        own = store["T"].isel(number=0, prediction_timedelta=1, level=0).load()
    with xr.open_zarr(folder / "truth.zarr", consolidated=False) as store:
        valid = own["time"] + own["prediction_timedelta"]
        truth = store["T"].isel(level=0).sel(time=valid.values).load()
    error = (own.values - truth.values).astype(float)
    weights = np.cos(np.deg2rad(SPACE_OFFLINE["latitude"]))[:, None]
    square = (error**2 * weights).sum() / (2 * weights.sum() * NUM_LON)
    found = one["rmse"].sel(system="forecast", region="global", channel="T0")[1]
    assert np.isclose(found, np.sqrt(square), rtol=1e-6)
    assert len(sums.starts) == 2


def test_sums_are_saved(folder, tmp_path):
    sums, _ = score(folder, 2)
    sums.save(tmp_path / "sums.npz")
    again = ScoreSums.load(tmp_path / "sums.npz")
    assert again.starts == sums.starts
    assert all(np.array_equal(again.arrays[k], x) for k, x in sums.arrays.items())
