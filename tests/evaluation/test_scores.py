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


def test_what_is_no_data_set_of_scores(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"scores[.]nc does not exist"):
        read_scores(tmp_path)
    other = some_scores().rename(rmse="speed")
    with pytest.raises(ValueError, match="unknown metrics: speed"):
        write_scores(other, tmp_path)
    turned = some_scores().transpose("region", ...)
    with pytest.raises(ValueError, match="rmse has the dims"):
        write_scores(turned, tmp_path)


def test_names_are_no_formulas():
    cells = {
        "=cmd|' /C x'!A0": "'=cmd|' /C x'!A0",
        "T\x1b[2J": "T\\x1b[2J",
        "T500": "T500",
        -1.5: -1.5,
    }
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
    scores = some_scores()
    for name, value in {"report": True, "dates": [["a", "b"]], "no": None}.items():
        scores.attrs[name] = attribute_value(value)
    write_scores(scores.assign_attrs(count=attribute_value(3)), tmp_path)
    found = read_scores(tmp_path).attrs
    assert found["report"] == "true"
    assert found["dates"] == '[["a", "b"]]'
    assert found["no"] == "null"
    assert found["count"] == 3


def printed(scores):
    console = Console(width=20)
    with console.capture() as text:
        print_table(score_table(scores), console)
    return text.get().splitlines()


def test_numbers_have_units_and_say_over_how_many_levels_they_are():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=2)
    assert score_table(scores).title == (
        "RMSE, global, 12 start dates; root mean square over the levels"
    )
    units = scores["units"].astype(object)
    units[scores["variable"] == "U"] = "m s**-1"
    lines = printed(scores.assign_coords(units=units))
    assert any("m s⁻¹" in line for line in lines)
    heads = [line[:13].strip() for line in lines]
    place = heads.index("T")
    assert heads[place + 1 : place + 3] == ["K", "3 levels"]
    place_of_sp = heads.index("SP")
    assert heads[place_of_sp + 1 : place_of_sp + 3] == ["Pa", ""], "one level"
    only = printed(scores.sel(system=["forecast"]))
    assert any(line.startswith("  T, K, 3 levels") for line in only)
    own = scores["rmse"].sel(system="forecast", region="global")
    own = own.sel(channel=["T250", "T500", "T850"])
    mean = np.sqrt((own**2).mean("channel")).values
    assert lines[place].split()[-4:] == [f"{float(f'{value:.3g}'):g}" for value in mean]


def test_without_levels_nothing_is_said_of_them():
    scores = make_scores(levels=(500.0,), num_days=1)
    assert score_table(scores).title == "RMSE, global, 12 start dates"


def test_dates_of_the_training_are_said_to_be_so():
    scores = make_scores(levels=(500.0,), num_days=1)
    for seen in ("none", "unknown"):
        title = score_table(scores.assign_attrs(training_dates=seen)).title
        assert title == "RMSE, global, 12 start dates"
    seen = "5 of 9 dates are in the training period (2000 to 2001), and not held out"
    title = score_table(scores.assign_attrs(training_dates=seen)).title
    assert title == f"RMSE, global, 12 start dates; {seen}"
    assert set(to_table(scores)["training_dates"]) == {"unknown"}
    table = to_table(scores.assign_attrs(training_dates=seen))
    assert set(table["training_dates"]) == {"5 of 9 dates"}


def test_names_of_files_are_neither_markup_nor_escapes():
    hostile = "[/]\x1b[2J[bold]T"
    scores = make_scores(levels=(500.0,), num_days=1)
    names = [hostile if name == "T" else name for name in scores["variable"].values]
    scores = scores.assign_coords(variable=("channel", names))
    (line,) = [line for line in printed(scores) if "[bold]T" in line]
    assert "[/]\\x1b[2J[bold]T" in line
    assert "\x1b" not in line


SPACE = {"latitude": [45.0, -45.0], "longitude": [0.0, 120.0, 240.0]}


def truth(levels):
    coords = {"time": [np.datetime64(0, "ns")], "level": levels, **SPACE}
    shape = [len(values) for values in coords.values()]
    field = xr.DataArray(np.zeros(shape), coords, [*coords])
    flat = field.isel(level=0, drop=True)
    dataset = xr.Dataset({"T": field, "U": field, "SP": flat})
    return FileReference(GridFile("truth.nc", dataset, ("time",), ("time",)), "time")


def forecast(levels, *names, there=None):
    known = {name: Variable(name) for name in ("T", "U", "SP", "TP")}
    known |= {name: Variable(name, np.array(levels, float)) for name in ("T", "U")}
    there = there or ([0.25, 0.5, 0.75] if max(levels) < 5 else [850.0, 500.0])
    return compare(table(known), truth(there), names)


def table(known):
    space = (np.array(values) for values in SPACE.values())
    return Variables("the forecast", known, *space)


def test_levels_are_compared_by_their_values():
    found = forecast([500, 850])
    assert (found.to_truth.levels["T"], found.to_truth.other_levels["T"]) == (
        (0, 1),
        (1, 0),
    )
    assert found.notes == ("not in the truth, and left out: TP",)
    assert forecast([500, 850], "T", "SP").notes == (), "what is not asked for"


def test_levels_that_are_numbers_are_compared_in_order():
    """As where data.source.*.levels names none, in CREDIT's files and ours."""
    found = forecast([0, 1, 2])
    assert found.to_truth.levels["U"] == found.to_truth.other_levels["U"] == (0, 1, 2)
    assert found.notes[-1].startswith("T, U: levels 0, 1, 2 are taken in order as 0.25")
    levels = [channel.level for channel in found.channels if channel.variable == "T"]
    assert levels == [0.25, 0.5, 0.75], "the values, which the truth knows"
    with pytest.raises(ValueError, match=r"T: one side only numbers its levels.*0, 1;"):
        forecast([0, 1])
    found = forecast([0, 2], there=[0.0, 1.0, 2.0])
    assert found.to_truth.other_levels["T"] == (0, 2), "some of the numbers"
    assert found.notes == ("not in the truth, and left out: TP",)


@pytest.mark.parametrize(
    ("levels", "left"), [([850.0, 400.0], "500"), ([850.0], "500"), ([500.0], "850")]
)
def test_levels_that_the_truth_lacks_are_named(levels, left):
    """The others are compared: coordinates say which ones these are."""
    found = forecast([500, 850], "T", there=levels)
    (ours,), (theirs,) = found.to_truth.levels["T"], found.to_truth.other_levels["T"]
    assert [500, 850][ours] == levels[theirs] == found.channels[0].level
    there = ", ".join(f"{level:g}" for level in levels)
    expected = f"T: truth.nc has no level {left} of the forecast; it has {there}"
    assert found.notes == (f"{expected}; left out",)


def winds(ours, theirs, levels=(500.0, 850.0)):
    """Forecasts of 7 in a unit, in hPa, compared with a truth of 7 in another."""
    reference = truth(list(levels))
    reference.file.dataset["U"].attrs["units"] = theirs
    reference.file.dataset["U"][...] = 7.0
    levels = np.array([500.0, 850.0])
    deep = Variable("U", levels, units=ours, level_units="hPa")
    return compare(table({"U": deep}), reference)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("m s-1", "m/s", 7),
        ("m s-1", "cm s-1", 0.07),
        ("1", "%", 0.07),
        ("kg m-2 s-1", "mm day-1", 7 / 86400),
        ("", "m s-1", 7),
        ("K", "degC", 280.15),
    ],
)
def test_a_truth_is_converted_to_the_units_of_forecasts(ours, theirs, expected):
    found = winds(ours, theirs)
    (fields,) = found.persistence(np.datetime64(0, "ns")).values()
    np.testing.assert_allclose(fields, expected, rtol=1e-6)
    assert found.notes == ()


@pytest.mark.parametrize(("ours", "theirs"), [("W m-2", "J m-2"), ("mm", "mm day-1")])
def test_units_that_cannot_be_converted_are_refused(ours, theirs):
    with pytest.raises(ValueError, match=f"U is in '{theirs}', expected '{ours}' as"):
        winds(ours, theirs)


def test_units_that_are_not_known_are_named():
    assert winds("m/s", "blob").notes == (
        "units that cannot be compared: U in 'm/s' and 'blob'",
    )


def test_levels_of_a_truth_without_units_are_in_pascal_if_they_are_large():
    found = winds("m/s", "m/s", [500.0, 850.0, 5e4, 8.5e4])
    assert found.to_truth.other_levels["U"] == (2, 3)


def test_a_truth_without_times_is_refused():
    reference = timed(["2001-01-01T00"])
    reference.file.dataset["SP"] = reference.file.dataset["SP"].isel(time=0)
    flat = {"SP": Variable("SP")}
    with pytest.raises(ValueError, match=r"truth\.nc: SP has no dim of times"):
        compare(table(flat), reference)
    flat = {"SP": Variable("SP", constant=True)}
    with pytest.raises(ValueError, match="the forecast: SP has no dim of times"):
        compare(table(flat), timed(["2001-01-01T00"]))


def timed(times):
    coords = {"time": np.array(times, "datetime64[ns]"), **SPACE}
    shape = [len(values) for values in coords.values()]
    field = np.arange(len(times), dtype=float)[:, None, None] + np.zeros(shape)
    dataset = xr.Dataset({"SP": ([*coords], field)}, coords)
    return FileReference(GridFile("truth.nc", dataset, ("time",), ("time",)), "time")


def test_a_time_that_occurs_twice_is_an_error():
    times = np.array(["2001-01-01T00", "2001-01-01T06"], "datetime64[ns]")
    twice = timed([*times, times[0]])
    with pytest.raises(ValueError, match="2001-01-01T00:00:00 occurs more than once"):
        twice.problems(times, ["SP"])


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
        coords = {
            "time": starts,
            "number": np.arange(NUM_MEMBERS),
            "prediction_timedelta": (6 * np.arange(1, count + 1) * hour).astype(
                "m8[ns]"
            ),
            "level": levels,
            **SPACE_OFFLINE,
        }
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
    print({count: f"{peak / lead:.1f} lead times" for count, peak in peaks.items()})
    assert peaks[12] < peaks[2] + 2 * lead


def test_on_a_mesh(folder):
    """Rows are split over three devices, forecasts over two data-parallel ranks."""
    dims = ParallelDims(dp_replicate=2, domain=3, world_size=6)
    one, many = (
        score(folder, 2)[0],
        score(folder, 2, mesh=dims.build_mesh(jax.devices()[:6]))[0],
    )
    for name in ("forecast/squared", "forecast/crps", "members/power", "truth/power"):
        worst = np.max(np.abs(many.arrays[name] / one.arrays[name] - 1))
        print(f"{name}: {worst:.1e}")
        assert worst < 1e-6


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


def test_sums_are_saved_merged_and_refused(folder, tmp_path):
    sums, _ = score(folder, 2)
    sums.save(tmp_path / "sums.npz")
    again = ScoreSums.load(tmp_path / "sums.npz")
    assert again.starts == sums.starts
    assert all(np.array_equal(again.arrays[k], x) for k, x in sums.arrays.items())
    with pytest.raises(ValueError, match="2000-01-01T00:00 is in both sums"):
        sums.merge(again)
    date = np.datetime64("2001-01-01", "ns")
    other = ScoreSums((date,), {"forecast/squared": np.ones(3)})
    with pytest.raises(ValueError, match="sums of other scores cannot be merged"):
        sums.merge(other)
