"""Which levels of forecasts and truth are compared with each other."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.evaluation.comparison import compare
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import FileReference
from credit_jax.named_fields.variables import Variable, Variables

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
