"""Observations, their operators, and windows that follow each other."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.extensions.assimilation import (
    OperatorEntry,
    TrajectoryGrid,
    operators,
    read_observations,
)
from credit_jax.extensions.assimilation.cycling import (
    background_variance,
    far_departures,
)
from credit_jax.extensions.assimilation.observations import (
    find_faults,
    in_units_of,
    notes_on_units,
    usable,
)
from credit_jax.extensions.assimilation.operators import (
    Interpolation,
    neighbors,
    operators_of,
)
from credit_jax.named_fields.variables import Variable
from tests.extensions.assimilation import windows
from tests.extensions.assimilation.conftest import *  # noqa: F403
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("observations")
TEXT = """time, latitude, longitude, level, variable, value, error, station
2000-01-01T03:00, 10.5, -20, 2.5, T, 281.5, 1.0, a
2000-01-01T05:00+02:00, -30, 350, , SP, 100100, 90, b
"""
TP = {"TP": Variable("ERA5/diagnostic/2d/TP")}
GRIDS = {
    "": windows.GRID_OF_RUN,
    "levels in hPa": replace(windows.GRID_OF_RUN, level_units={"T": "hPa", "U": "hPa"}),
    "TP is predicted": replace(
        windows.GRID_OF_RUN,
        variables={**windows.GRID_OF_RUN.variables, **TP},
        predicted=frozenset(TP),
    ),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "obs.csv"
    path.write_text(TEXT)
    return path


def table_of(path, **changes):
    """Two usable observations, and one like the first with changes."""
    table = read_observations([str(path)])
    further = table.iloc[:1].assign(row=3, **changes)
    return pd.concat([table, further], ignore_index=True)


def reasons_of(table, grid=windows.GRID_OF_RUN, of=()):
    return find_faults(table, grid, 3, of).reasons.tolist()


def used(grid, *of, leave_out=(), **changes):
    """Uses the observations with a third one that is changed."""

    def case(path):
        table = table_of(path, **changes)
        faults = find_faults(table, GRIDS[grid], 3, of)
        left, lines = usable(table, faults, leave_out)
        return [f"{len(left)} are used", *lines]

    return case


# The reason, its count, the first, and what to do; which are used, too.
EDGE = str(windows.GRID_OF_RUN.times[-1] - np.timedelta64(1, "s"))[:19]
for name, grid, *of, changes in (
    ("time", "", {"time": pd.Timestamp("2000-01-01T18:00")}),
    ("before the end", "", {"time": pd.Timestamp(EDGE)}),
    ("place", "", {"latitude": 80.0}),
    ("level", "", {"level": 0.5}),
    ("variable", "", {"variable": "Z"}),
    ("units", "", {"units": "degC"}),
    ("units of an operator", "", "T", {"units": "degC"}),
    ("value", "", {"value": np.nan}),
    ("error", "", {"error": 0.0}),
    ("negative error", "", {"error": -1.0}),
    ("infinite error", "", {"error": np.inf}),
    ("error without weight", "", {"error": 1e-25}),
    ("duplicate but for 360 degrees", "", {"longitude": 340.0}),
    ("another station", "", {"station": "b"}),
    ("another error", "", {"error": 2.0}),
    ("another level", "", {"level": 2.6}),
    ("what an operator sees off the grid", "", "TB", {"variable": "TB", "level": 80.0}),
    ("diagnostic at the start", "TP is predicted", {"variable": "TP"}),
    ("units of levels", "levels in hPa", {"level_units": "Pa"}),
):
    CASES.call(name, used(grid, *of, **changes))
CASES.call("left out", used("", leave_out=["place"], latitude=80.0))


def several(path, *leave_out, only=slice(None)):
    changes = {"time": pd.Timestamp("2000-01-02"), "latitude": 80.0, "level": 0.5}
    changes |= {"variable": "Z", "value": np.nan, "error": 0.0}
    tables = [table_of(path, **{name: x}).iloc[2:] for name, x in changes.items()]
    table = pd.concat([table_of(path).iloc[:2], *tables]).iloc[only]
    usable(table, find_faults(table, windows.GRID_OF_RUN, 3, ()), leave_out)


CASES.call("several", lambda path: several(path, "place"))
CASES.call("all left out", lambda path: several(path, "variable", only=slice(5, 6)))
CASES.call("no rows", lambda path: several(path, only=slice(0)))


def read(path, *edits):
    """Reads a file with changes, and says the reasons of its rows."""
    text = path.read_text()
    for old, new in edits:
        text = text.replace(old, new)
    path.write_text(text)
    return lambda: f"reasons: {reasons_of(read_observations([str(path)]))}"


FIRST = ("\n2000-01-01T05:00+02:00, -30, 350, , SP, 100100, 90, b", "")
for name, *edits in (
    ("dates", ("2000-01-01T", "01/02/2000 ")),
    ("an error with a unit", (", 1.0,", ", 1 K,")),
    ("all errors with a unit", (", 1.0,", ", 1 K,"), FIRST),
    ("a latitude", (", 10.5, -20", ", 10N, -20")),
    ("all latitudes", (", 10.5, -20", ", 10N, -20"), FIRST),
    ("a value with a unit", ("281.5", "281.5 K")),
    ("all values with a unit", ("281.5", "281.5 K"), FIRST),
    ("no error", ("error", "sigma")),
    ("a column row", ("station", "row")),
    ("empty", (TEXT, "")),
):
    CASES.call(name, lambda path, edits=edits: read(path, *edits))
CASES.call("no file", lambda tmp_path: read_observations([f"{tmp_path}/none.csv"]))


def netcdf(path, dataset):
    dataset.to_netcdf(path.with_name("obs.nc"))
    return lambda: read_observations([str(path.with_name("obs.nc"))])


@CASES.case
def hours(path):
    return netcdf(path, xr.Dataset({"time": ("obs", np.array([3.0]))}))


@CASES.case
def two_dims(path):
    return netcdf(path, xr.Dataset({"a": (("x", "y"), np.ones((1, 1)))}))


@CASES.case
def two_units(path):
    dataset = columns_of(path)
    dataset["value"].attrs["units"], dataset["error"].attrs["units"] = "degC", "K"
    return netcdf(path, dataset)


def columns_of(path):
    table = read_observations([str(path)]).drop(columns=["file", "row", "station"])
    texts = {"variable": object}
    return xr.Dataset({n: ("obs", table[n].to_numpy(texts.get(n))) for n in table})


def test_files(path):
    table = read_observations([str(path)])
    assert table["time"].tolist() == [pd.Timestamp("2000-01-01T03:00")] * 2
    assert table["level"].isna().tolist() == [False, True]
    assert table["station"].tolist() == ["a", "b"]
    other = path.with_name("obs.nc")
    columns_of(path).drop_vars("level").to_netcdf(other)
    both = read_observations([str(path), str(other)])
    for name in ("time", "latitude", "longitude", "variable", "value", "error"):
        assert both[name].tolist() == [*table[name]] * 2, name
    assert both["row"].tolist() == [1, 2, 1, 2]
    assert both["level"].isna().tolist() == [False, True, True, True]
    # A comma at the end of rows.
    text = TEXT.replace(", station", "").replace(", a\n", ",\n").replace(", b", ",")
    path.write_text(text)
    expected = table.drop(columns="station")
    assert read_observations([str(path)]).equals(expected)
    # What the libraries say of others depends on their version.
    (other := path.with_name("table.xls")).write_text("no NetCDF")
    with pytest.raises(ValueError, match=r"table.xls cannot be read as CSV"):
        read_observations([str(other)])


def test_texts_of_names_and_levels(path):
    """Names may have blanks around them, and variables without levels any level."""
    text = TEXT.replace(" T,", " T ,").replace(", , SP", ", sfc, SP")
    lines = text.splitlines(keepends=True)
    path.write_text(text)
    table = read_observations([str(path)])
    assert table["variable"].tolist() == ["T", "SP"]
    path.write_text(lines[0] + lines[2])
    assert read_observations([str(path)])["level"].isna().tolist() == [True]


def test_parquet(path, tmp_path, monkeypatch):
    """pandas reads it; its times may have a zone."""
    zoned = read_observations([str(path)]).drop(columns=["file", "row"])
    zoned["time"] = zoned["time"].dt.tz_localize("UTC").dt.tz_convert("+02:00")
    monkeypatch.setattr(pd, "read_parquet", lambda path: zoned.copy())
    (tmp_path / "obs.parquet").touch()
    table = read_observations([str(tmp_path / "obs.parquet")])
    expected = read_observations([str(path)])
    assert table.drop(columns="file").equals(expected.drop(columns="file"))

    def without_engine(path):
        raise ImportError("pyarrow is missing")

    monkeypatch.setattr(pd, "read_parquet", without_engine)
    with pytest.raises(ValueError, match=r"obs.parquet cannot be read .*: pyarrow is"):
        read_observations([str(tmp_path / "obs.parquet")])


def test_levels_of_duplicates_and_units(path):
    """Variables without levels may have any; units that nobody compares are taken."""
    table = read_observations([str(path)])
    table = pd.concat([table, table.iloc[1:].assign(level=7.0)], ignore_index=True)
    assert reasons_of(table)[2] == "duplicate"
    for units in ("mbar", "blob", "", np.nan):
        table = table_of(path, level_units=units).iloc[[0, 2]]
        assert reasons_of(table, GRIDS["levels in hPa"])[0] == ""
    predicted = GRIDS["TP is predicted"]
    later = table_of(path, variable="TP", time=predicted.times[1])
    assert not any(reasons_of(later, predicted))


def test_units_that_can_be_converted_are(path):
    grid = replace(windows.GRID_OF_RUN, level_units={"T": "hPa"})
    changes = {"units": "degF", "level_units": "Pa", "level": 250.0}
    table = in_units_of(table_of(path, **changes), grid, ())
    row = table.iloc[2]
    assert (row["units"], row["level_units"], row["level"]) == ("K", "hPa", 2.5)
    assert row["value"] == pytest.approx((281.5 - 32) / 1.8 + 273.15)
    assert row["error"] == pytest.approx(1 / 1.8)
    pd.testing.assert_frame_equal(table[:2], table_of(path, **changes)[:2])
    for name, of in (("J", ()), ("degF", ["T"])):
        table = in_units_of(table_of(path, units=name), grid, of)
        assert table["units"][2] == name


def test_units_of_netcdf(path):
    """Attributes stand for columns that are not there."""
    dataset, file = columns_of(path), path.with_name("obs.nc")
    dataset["value"].attrs = dataset["error"].attrs = {"units": "degC"}
    dataset["level"].attrs["units"] = "Pa"
    dataset.to_netcdf(file)
    table = read_observations([str(file)])
    assert table["units"].tolist() == ["degC"] * 2
    assert table["level_units"].tolist() == ["Pa"] * 2
    dataset["units"] = "obs", np.array(["K", "Pa"], object)
    dataset.to_netcdf(path.with_name("column.nc"))
    table = read_observations([str(path.with_name("column.nc"))])
    assert table["units"].tolist() == ["K", "Pa"]


def notes(variables, units, of=(), **known):
    """What is said of observations, the model's units, and operators."""

    def case(path):
        columns = {"variable": variables} | ({"units": units} if units else {})
        grid = replace(
            windows.GRID_OF_RUN, units={**windows.GRID_OF_RUN.units, **known}
        )
        return notes_on_units(table_of(path).assign(**columns), grid, of)

    return case


THREE = ["T", "SP", "T"]
CASES.call("no units", notes(THREE, None))
CASES.call("unknown units", notes(THREE, ["blobs", "Pa", " "]))
CASES.call("operators", notes(THREE, ["blobs", "Pa", " "], ["T", "SP"]))
CASES.call("equal units", notes(THREE, ["K", "Pa", "kelvin"], SP="Pa"))


T = windows.VARIABLES[1]


@pytest.mark.parametrize("flipped", [False, True])
def test_interpolation_is_that_of_xarray(flipped):
    """Linear along every dim, rows in any order, across 0 and 360 degrees."""
    table = windows.drawn(200)
    table["variable"] = "T"
    table["level"] = np.random.default_rng(0).uniform(1, 5, 200)
    latitude = windows.GRID_OF_RUN.latitude[:: -1 if flipped else 1]
    longitude = windows.GRID_OF_RUN.longitude - (180 if flipped else 0)
    grid = TrajectoryGrid({"T": T}, latitude, longitude, windows.GRID_OF_RUN.times)
    field = np.random.default_rng(0).normal(0, 1, (4, 2, 6, 10)).astype(np.float32)
    around = np.concatenate([field] * 3, -1)
    expected = xr.DataArray(
        around,
        {
            "time": (windows.GRID_OF_RUN.times - windows.START) / windows.STEP,
            "level": T.levels,
            "latitude": latitude,
            "longitude": np.concatenate([longitude + k for k in (-360, 0, 360)]),
        },
        ("time", "level", "latitude", "longitude"),
    ).interp(
        time=("obs", (table["time"].to_numpy() - windows.START) / windows.STEP),
        level=("obs", table["level"]),
        latitude=("obs", table["latitude"]),
        longitude=("obs", table["longitude"]),
    )
    operator = Interpolation(T.key, "T")
    values = operator(operator.prepare(table, grid), {T.key: jax.numpy.asarray(field)})
    np.testing.assert_allclose(values, expected, atol=2e-6)


def test_neighbors():
    places, weights = neighbors(np.array([5.0, 1.0]), np.array([1.0, 2.0, 5.0]))
    assert places.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert weights.tolist() == [[1.0, 0.75, 0.0], [0.0, 0.25, 1.0]]
    circle = np.array([10.0, 130.0, 250.0])
    places, weights = neighbors(circle, np.array([-50.0, 370.0]), period=360.0)
    assert places[:, 0].tolist() == [2, 0]
    assert weights[:, 0].tolist() == [0.5, 0.5]
    assert (places[0, 1], weights[0, 1]) == (0, 1.0)
    places, weights = neighbors(np.array([3.0]), np.zeros(1))
    assert places.tolist() == [[0], [0]]


def test_operators_of_the_user(monkeypatch):
    class Mine(SimpleNamespace):
        prepare = __call__ = print

    entry = OperatorEntry(lambda variable, grid: Mine(variable=variable, grid=grid))
    monkeypatch.setitem(operators.OPERATORS, "mine", entry)
    chosen = operators_of({"TB": "mine"}, windows.GRID_OF_RUN)
    assert chosen["TB"] == Mine(variable="TB", grid=windows.GRID_OF_RUN)
    assert chosen["SP"] == Interpolation("ERA5/prognostic/2d/SP", "SP")


CASES.call("operator", lambda: operators_of({"TB": "mien"}, windows.GRID_OF_RUN))


@CASES.case
def no_operator(monkeypatch):
    entry = OperatorEntry(lambda variable, grid: abs)
    monkeypatch.setitem(operators.OPERATORS, "mine", entry)
    return lambda: operators_of({"TB": "mine"}, windows.GRID_OF_RUN)


def test_observations_far_from_the_background_are_said(forecaster, initial):
    """Those in another unit, by variable, with the first row."""
    problem = windows.window(forecaster, initial, windows.drawn(40))
    table = problem.observed.table.assign(value=problem.first.values)
    celsius = table.index[table["variable"] == "T"][2:4]
    table.loc[celsius, "value"] -= 273.15
    table.loc[table["variable"] == "U", "value"] += 3.0
    first = windows.observing(problem, table).first
    (line,) = far_departures(first, background_variance(first, 0))
    count, row = (table["variable"] == "T").sum(), table.loc[celsius[0]]
    assert line.startswith(f"T: 2 of {count} observations more than 10 standard")
    assert f"the first is row {row['row']} of drawn.csv: {row['value']:.6g}, " in line
    assert float(line.rpartition(" ")[2]) == pytest.approx(row["value"] + 273.15)
