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
from tests.extensions.assimilation.conftest import *  # noqa: F403
from tests.extensions.assimilation.windows import (
    GRID_OF_RUN,
    START,
    STEP,
    VARIABLES,
    drawn,
    observing,
    window,
)

TEXT = """time, latitude, longitude, level, variable, value, error, station
2000-01-01T03:00, 10.5, -20, 2.5, T, 281.5, 1.0, a
2000-01-01T05:00+02:00, -30, 350, , SP, 100100, 90, b
"""
FAULTS = {
    "time": {"time": pd.Timestamp("2000-01-01T18:00")},
    "place": {"latitude": 80.0},
    "level": {"level": 0.5},
    "variable": {"variable": "Z"},
    "units": {"units": "degC"},
    "value": {"value": np.nan},
    "error": {"error": 0.0},
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


def test_files(path, tmp_path):
    table = read_observations([str(path)])
    assert table["time"].tolist() == [
        pd.Timestamp("2000-01-01T03:00"),
        pd.Timestamp("2000-01-01T03:00"),
    ]
    assert table["level"].isna().tolist() == [False, True]
    assert table["station"].tolist() == ["a", "b"]
    columns = {
        name: ("obs", table[name].to_numpy(object if name == "variable" else None))
        for name in ("time", "latitude", "longitude", "variable", "value", "error")
    }
    xr.Dataset(columns).to_netcdf(tmp_path / "obs.nc")
    both = read_observations([str(path), str(tmp_path / "obs.nc")])
    assert len(both) == 4
    for name in columns:
        assert both[name].tolist()[2:] == table[name].tolist(), name
    assert both["row"].tolist() == [1, 2, 1, 2]
    assert both["level"].isna().tolist() == [False, True, True, True]


def test_texts_of_names_and_levels(path):
    """Names may have blanks around them, and variables without levels any level."""
    text = TEXT.replace(" T,", " T ,").replace(", , SP", ", sfc, SP")
    lines = text.splitlines(keepends=True)
    path.write_text(text)
    table = read_observations([str(path)])
    assert table["variable"].tolist() == ["T", "SP"]
    path.write_text(lines[0] + lines[2])
    assert read_observations([str(path)])["level"].isna().tolist() == [True]


def test_a_comma_at_the_end_of_rows(path):
    expected = read_observations([str(path)]).drop(columns="station")
    lines = TEXT.replace(", station", "").replace(", a\n", ",\n").replace(", b", ",")
    path.write_text(lines)
    assert read_observations([str(path)]).equals(expected)


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


@pytest.mark.parametrize("reason", FAULTS)
def test_faults_are_named_and_counted(path, reason):
    table = table_of(path, **FAULTS[reason])
    faults = find_faults(table, GRID_OF_RUN, 3, ())
    assert faults.reasons.tolist() == ["", "", reason]
    with pytest.raises(ValueError, match="observations that cannot be used") as error:
        usable(table, faults, [])
    assert f"{reason}: 1 of 3, the first is row 3 of {path}: " in str(error.value)
    assert f"assimilation.leave_out: [{reason}]" in str(error.value)
    left, lines = usable(table, faults, [reason])
    assert len(left) == 2
    assert lines[0].startswith(f"{reason}: 1 of 3")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("2000-01-01T", "01/02/2000 ", "time: none of 2 values .* '01/02/2000 03:00'"),
        (", 1.0,", ", 1 K,", None),
        (", 10.5, -20", ", 10N, -20", None),
        ("281.5", "281.5 K", None),
    ],
)
def test_texts_that_cannot_be_read(path, old, new, text):
    """All of a column are an error, some are faults."""
    path.write_text(TEXT.replace(old, new))
    if text is None:
        reasons = find_faults(
            read_observations([str(path)]), GRID_OF_RUN, 3, ()
        ).reasons
        assert reasons.astype(bool).tolist() == [True, False]
        lines = TEXT.splitlines(keepends=True)
        path.write_text("".join(lines[:2]).replace(old, new))
        text = f"can be read, the first is '.*{new.strip(', ').partition(',')[0]}'"
    with pytest.raises(
        ValueError, match=f"assimilation.observations: .*obs.csv.*{text}"
    ):
        read_observations([str(path)])


@pytest.mark.parametrize("error", [-1.0, np.inf, 1e-25])
def test_errors_that_have_no_weight(path, error):
    faults = find_faults(table_of(path, error=error), GRID_OF_RUN, 3, ())
    assert faults.reasons.tolist() == ["", "", "error"]


def test_duplicates_are_equal_in_all_columns(path):
    """Longitudes but for 360 degrees, and levels where there are some."""
    faults = find_faults(table_of(path, longitude=340.0), GRID_OF_RUN, 3, ())
    assert faults.reasons.tolist() == ["", "", "duplicate"]
    assert "repeats an earlier row" in faults.first["duplicate"][1]
    table = read_observations([str(path)])
    table = pd.concat([table, table.iloc[1:].assign(level=7.0)], ignore_index=True)
    assert find_faults(table, GRID_OF_RUN, 3, ()).reasons[2] == "duplicate"
    for changes in ({"station": "b"}, {"error": 2.0}, {"level": 2.6}):
        table = table_of(path, **changes)
        assert not find_faults(table, GRID_OF_RUN, 3, ()).reasons.any()


def test_several_faults_in_one_error(path):
    tables = [table_of(path, **x) for x in FAULTS.values()]
    table = pd.concat([tables[0], *(x.iloc[2:] for x in tables[1:])])
    faults = find_faults(table, GRID_OF_RUN, 3, ())
    with pytest.raises(ValueError, match="time: 1 of 9") as error:
        usable(table, faults, ["place"])
    assert str(error.value).count(" of 9, the first is") == 6
    assert "place" not in str(error.value)


def test_all_left_out(path):
    table = table_of(path, variable="Z").iloc[2:]
    faults = find_faults(table, GRID_OF_RUN, 3, ())
    with pytest.raises(ValueError, match=r"none of 1 can be used:\n  variable: 1 of 1"):
        usable(table, faults, ["variable"])


def test_a_file_without_rows(path):
    path.write_text(TEXT.partition("\n")[0])
    table = read_observations([str(path)])
    faults = find_faults(table, GRID_OF_RUN, 3, ())
    with pytest.raises(ValueError, match="the files have no observations"):
        usable(table, faults, [])


def test_windows_do_not_hold_their_end(path):
    table = table_of(path, time=GRID_OF_RUN.times[-1] - np.timedelta64(1, "s"))
    assert not find_faults(table, GRID_OF_RUN, 3, ()).reasons.any()


def test_variables_that_the_start_lacks(path):
    """Diagnostic ones cannot be interpolated before the end of the first step."""
    tp = Variable("ERA5/diagnostic/2d/TP")
    variables = {**GRID_OF_RUN.variables, "TP": tp}
    grid = replace(GRID_OF_RUN, variables=variables, predicted=frozenset(["TP"]))
    early = table_of(path, variable="TP")
    assert find_faults(early, grid, 3, ()).reasons.tolist() == ["", "", "time"]
    later = table_of(path, variable="TP", time=grid.times[1])
    assert not find_faults(later, grid, 3, ()).reasons.any()


def test_units_of_levels(path):
    grid = replace(GRID_OF_RUN, level_units={"T": "hPa", "U": "hPa"})
    faults = find_faults(table_of(path, level_units="Pa"), grid, 3, ())
    assert faults.reasons.tolist() == ["", "", "units"]
    text = "T at level 2.5 in Pa, and the model's levels are in hPa"
    assert faults.first["units"][1] == text
    for units in ("mbar", "blob", "", np.nan):
        table = table_of(path, level_units=units)
        assert not find_faults(table.iloc[[0, 2]], grid, 3, ()).reasons[0]


def test_units_that_can_be_converted_are(path):
    grid = replace(GRID_OF_RUN, level_units={"T": "hPa"})
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


def test_units_are_those_of_an_operator(path):
    """A variable with an operator of its own is not that of the model."""
    table = table_of(path, units="degC")
    assert not find_faults(table, GRID_OF_RUN, 3, ["T"]).reasons.any()


def test_units_of_netcdf(path, tmp_path):
    """Attributes stand for columns that are not there."""
    table = read_observations([str(path)]).drop(columns=["file", "row", "station"])
    columns = {name: ("obs", table[name].to_numpy()) for name in table}
    columns["variable"] = ("obs", table["variable"].to_numpy(object))
    dataset = xr.Dataset(columns)
    dataset["value"].attrs = dataset["error"].attrs = {"units": "degC"}
    dataset["level"].attrs["units"] = "Pa"
    dataset.to_netcdf(tmp_path / "obs.nc")
    table = read_observations([str(tmp_path / "obs.nc")])
    assert table["units"].tolist() == ["degC"] * 2
    assert table["level_units"].tolist() == ["Pa"] * 2
    dataset["units"] = "obs", np.array(["K", "Pa"], object)
    dataset.to_netcdf(tmp_path / "column.nc")
    table = read_observations([str(tmp_path / "column.nc")])
    assert table["units"].tolist() == ["K", "Pa"]
    dataset["error"].attrs["units"] = "K"
    dataset.to_netcdf(tmp_path / "two.nc")
    with pytest.raises(ValueError, match="its error is in K and its value in degC"):
        read_observations([str(tmp_path / "two.nc")])


def test_notes_on_units_that_are_not_compared(path):
    table = table_of(path).assign(variable=["T", "SP", "T"])
    notes = notes_on_units(table, GRID_OF_RUN, ())
    assert notes == [
        "assimilation.observations: those without units are read in the model's: 2 of "
        "T in K, 1 of SP in unknown units; a column units is compared"
    ]
    table["units"] = ["blobs", "Pa", " "]
    assert notes_on_units(table, GRID_OF_RUN, ()) == [
        "assimilation.observations: those without units are read in the model's: 1 of "
        "T in K; a column units is compared",
        "assimilation.observations: units that cannot be compared, and are taken for "
        "the model's: 1 of SP in Pa (the model's: unknown), 1 of T in blobs (the "
        "model's: K)",
    ]
    assert notes_on_units(table, GRID_OF_RUN, ["T", "SP"]) == []
    units = {**GRID_OF_RUN.units, "SP": "Pa"}
    table["units"] = ["K", "Pa", "kelvin"]
    assert notes_on_units(table, replace(GRID_OF_RUN, units=units), ()) == []


def test_operators_see_what_is_not_on_the_grid(path):
    table = table_of(path, variable="TB", level=80.0)
    assert not find_faults(table, GRID_OF_RUN, 3, ["TB"]).reasons.any()


def test_misuse(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.csv does not exist"):
        read_observations([str(tmp_path / "none.csv")])
    path.write_text(TEXT.replace("error", "sigma"))
    with pytest.raises(ValueError, match=r"obs.csv lacks error; it has time, lat"):
        read_observations([str(path)])
    path.write_text(TEXT.replace("station", "row"))
    with pytest.raises(ValueError, match=r"obs.csv has a column 'row', which here"):
        read_observations([str(path)])
    for name, text in (("empty.csv", ""), ("table.xls", "no NetCDF")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name} cannot be read as CSV"):
            read_observations([str(tmp_path / name)])
    columns = {"time": ("obs", np.array([3.0]))}
    xr.Dataset(columns).to_netcdf(tmp_path / "hours.nc")
    with pytest.raises(ValueError, match=r"holds float64 \(3.0, ...\) and no dates"):
        read_observations([str(tmp_path / "hours.nc")])
    xr.Dataset({"a": (("x", "y"), np.ones((1, 1)))}).to_netcdf(tmp_path / "two.nc")
    with pytest.raises(ValueError, match="must have one dim, of observations, got x"):
        read_observations([str(tmp_path / "two.nc")])


T = VARIABLES[1]


@pytest.mark.parametrize("flipped", [False, True])
def test_interpolation_is_that_of_xarray(flipped):
    """Linear along every dim, rows in any order, across 0 and 360 degrees."""
    table = drawn(200)
    table["variable"] = "T"
    table["level"] = np.random.default_rng(0).uniform(1, 5, 200)
    latitude = GRID_OF_RUN.latitude[:: -1 if flipped else 1]
    longitude = GRID_OF_RUN.longitude - (180 if flipped else 0)
    grid = TrajectoryGrid({"T": T}, latitude, longitude, GRID_OF_RUN.times)
    field = np.random.default_rng(0).normal(0, 1, (4, 2, 6, 10)).astype(np.float32)
    around = np.concatenate([field] * 3, -1)
    expected = xr.DataArray(
        around,
        {
            "time": (GRID_OF_RUN.times - START) / STEP,
            "level": T.levels,
            "latitude": latitude,
            "longitude": np.concatenate([longitude + k for k in (-360, 0, 360)]),
        },
        ("time", "level", "latitude", "longitude"),
    ).interp(
        time=("obs", (table["time"].to_numpy() - START) / STEP),
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
    chosen = operators_of({"TB": "mine"}, GRID_OF_RUN)
    assert chosen["TB"] == Mine(variable="TB", grid=GRID_OF_RUN)
    assert chosen["SP"] == Interpolation("ERA5/prognostic/2d/SP", "SP")
    text = r"assimilation.operators.TB: the operator 'mien' is not available; .*'mine'"
    with pytest.raises(ValueError, match=text):
        operators_of({"TB": "mien"}, GRID_OF_RUN)
    no_operator = OperatorEntry(lambda variable, grid: abs)
    monkeypatch.setitem(operators.OPERATORS, "mine", no_operator)
    text = "TB: 'mine' builds a builtin_function_or_method; expected .* prepare"
    with pytest.raises(ValueError, match=text):
        operators_of({"TB": "mine"}, GRID_OF_RUN)


def test_observations_far_from_the_background_are_said(forecaster, initial):
    """Those in another unit, by variable, with the first row."""
    problem = window(forecaster, initial, drawn(40))
    table = problem.observed.table.assign(value=problem.first.values)
    celsius = table.index[table["variable"] == "T"][2:4]
    table.loc[celsius, "value"] -= 273.15
    table.loc[table["variable"] == "U", "value"] += 3.0
    first = observing(problem, table).first
    (line,) = far_departures(first, background_variance(first, 0))
    count, row = (table["variable"] == "T").sum(), table.loc[celsius[0]]
    assert line.startswith(f"T: 2 of {count} observations more than 10 standard")
    assert f"the first is row {row['row']} of drawn.csv: {row['value']:.6g}, " in line
    assert float(line.rpartition(" ")[2]) == pytest.approx(row["value"] + 273.15)
