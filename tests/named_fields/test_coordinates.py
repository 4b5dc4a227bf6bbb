"""Coordinates: matching, refusals, and what checkpoints and packages record."""

import json

import numpy as np
import pytest

from credit_jax.named_fields.coordinates import (
    Coordinates,
    GridCoordinates,
    LevelValues,
    are_numbered_alike,
    as_values,
    attributes_of,
    common_indices,
    indices_of,
    is_numbered,
    take_indices,
)

ROWS = np.linspace(80, -80, 5)
COLUMNS = np.arange(8) * 45.0


def places(wanted, there, kind, **options):
    return indices_of(wanted, there, kind, "other.nc", "first.nc", **options)


@pytest.mark.parametrize(
    ("wanted", "there", "kind"),
    [
        (ROWS, ROWS, "latitude"),
        (ROWS, ROWS + 5e-3, "latitude"),
        (COLUMNS, COLUMNS - 360, "longitude"),
        (COLUMNS, np.where(COLUMNS > 300, COLUMNS - 360, COLUMNS), "longitude"),
        ([500.0, 850.0], [50000.0, 85000.0], "level"),
        ([0.1875, 0.5], np.float32([0.1875, 0.5]), "level"),
        ([500.0, 850.0], [0, 1], "level"),
        ([1, 2], [500.0, 850.0], "level"),
        (None, ROWS, "latitude"),
        (ROWS, None, "latitude"),
    ],
)
def test_values_in_one_order_stay(wanted, there, kind):
    assert places(wanted, there, kind) is None


@pytest.mark.parametrize(
    ("wanted", "order", "kind", "change"),
    [
        (ROWS, [4, 3, 2, 1, 0], "latitude", lambda x: x),
        (ROWS, [2, 0, 1, 4, 3], "latitude", lambda x: x),
        (
            COLUMNS,
            [4, 5, 6, 7, 0, 1, 2, 3],
            "longitude",
            lambda x: (x + 180) % 360 - 180,
        ),
        (np.array([200.0, 500.0, 850.0]), [2, 1, 0], "level", lambda x: x),
        (np.array([200.0, 500.0, 850.0]), [2, 0, 1], "level", lambda x: 100 * x),
    ],
)
def test_values_in_another_order_are_put_in_order(wanted, order, kind, change):
    there = change(wanted[order])
    found = places(wanted, there, kind)
    np.testing.assert_array_equal(found, np.argsort(order))
    field = np.arange(3 * len(wanted)).reshape(3, -1)
    np.testing.assert_array_equal(take_indices(field[:, order], found, 1), field)


def test_further_values_are_left_out_where_that_is_meant():
    there = [100.0, 850.0, 500.0, 200.0]
    found = places([200.0, 500.0], there, "level", some=True)
    np.testing.assert_array_equal(found, [3, 2])
    with pytest.raises(ValueError, match=r"other\.nc: has the levels"):
        places([200.0, 500.0], there, "level")


@pytest.mark.parametrize(
    ("wanted", "there", "kind", "texts"),
    [
        (ROWS, 90 - ROWS, "latitude", ["other.nc: 5 latitudes run from 10 to 170"]),
        (ROWS, ROWS[:-1], "latitude", ["4 latitudes", "first.nc 5 latitudes"]),
        (ROWS, ROWS + 0.02, "latitude", ["up to 0.02 degrees apart"]),
        (ROWS, [np.nan] * 5, "latitude", ["run from nan"]),
        ([500.0, 850.0], [500.0, 925.0], "level", ["[500.0, 925.0]", "[500.0, 850.0]"]),
        # A grid of a hundredth of a degree: its neighbors are not the same places.
        (
            np.arange(4) * 0.01,
            np.arange(4) * 0.01 + 0.005,
            "latitude",
            ["up to 0.005 degrees apart"],
        ),
    ],
)
def test_other_values_are_refused_with_both(wanted, there, kind, texts):
    with pytest.raises(ValueError, match=r"other\.nc") as caught:
        places(wanted, there, kind)
    for text in ("first.nc", *texts):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "there", "kind", "text"),
    [
        (COLUMNS, [*COLUMNS[:-1], 0.0], "longitude", "the longitude 0 occurs"),
        (COLUMNS, [*COLUMNS, 360.0], "longitude", "the longitude 0 occurs"),
        (ROWS, [*ROWS, ROWS[2]], "latitude", "the latitude 0 occurs"),
        ([500.0, 850.0], [500.0, 850.0, 500.0], "level", "the level 500 occurs"),
        # Numbers that stand for levels are values of their own file.
        ([500.0, 850.0], [1, 1], "level", "the level 1 occurs"),
    ],
)
def test_a_value_that_occurs_twice_leaves_open_which_is_meant(
    wanted, there, kind, text
):
    with pytest.raises(ValueError, match=rf"other\.nc: {text} more than once"):
        places(wanted, there, kind, some=True)


def test_two_values_near_one_leave_open_which_is_meant():
    with pytest.raises(ValueError, match=r"other\.nc: has the levels"):
        places([500.0, 850.0], [500.0, 500.01, 850.0], "level", some=True)


def test_numbers_in_place_of_levels():
    assert is_numbered([500.0, 850.0], [1, 2])
    assert not is_numbered([500.0, 850.0], [0, 1, 2])
    assert not is_numbered([0, 1], [1, 2])
    assert not is_numbered([1.0], [500.0]), "a single level may be meant by value"
    assert not is_numbered([3, 2, 1], [1, 2, 3]), "numbers on both sides are values"
    np.testing.assert_array_equal(places([3, 2, 1], [1, 2, 3], "level"), [2, 1, 0])


def test_numbers_are_noted_and_never_those_of_a_run(caplog):
    path = f"{__file__}.nc"
    for _ in range(2):
        assert indices_of([500.0, 850.0], [1, 2], "level", path, "first.nc") is None
    text = f"{path}: its levels [1.0, 2.0] are taken in order as [500.0, 850.0] of fir"
    assert caplog.text.count(text) == 1
    with pytest.raises(ValueError, match=r"other\.nc: has the levels \[1\.0, 2\.0\]"):
        places([500.0, 850.0], [1, 2], "level", of_run=True)
    assert places([1, 2], [500.0, 850.0], "level", of_run=True) is None


def test_numbers_of_hybrid_levels():
    assert are_numbered_alike((137.0, 1.0, 5.0), (1.0, 5.0, 137.0))
    for values, numbers in ((None, (1, 2)), ((1, 2), None), ((1, 2), (1, 2, 3))):
        assert not are_numbered_alike(values, numbers)


def test_common_values_of_two_coordinates():
    pairs = common_indices([850.0, 500.0, 10.0], [100.0, 500.0, 850.0], "level")
    assert pairs == [(0, 2), (1, 1)]
    # Of 100 hPa and 100 Pa, one is meant: most values are common in Pa.
    in_pascal = [100.0, 10000.0, 50000.0, 85000.0]
    pairs = common_indices([1.0, 100.0, 500.0, 850.0], in_pascal, "level")
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]
    with pytest.raises(ValueError, match=r"t\.nc: the level 500 occurs more than once"):
        common_indices([500.0], [500.0, 850.0, 500.0], "level", "t.nc")


HECTO, PASCAL = [200.0, 500.0, 1000.0], [2e4, 5e4, 1e5]
BOTH = [*HECTO, *PASCAL]


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        (LevelValues(HECTO, "hPa"), LevelValues(BOTH, "Pa"), [3, 4, 5]),
        (LevelValues(HECTO, "millibars"), LevelValues(BOTH), [3, 4, 5]),
        (LevelValues(HECTO), LevelValues(PASCAL[::-1], "Pa"), [2, 1, 0]),
        (LevelValues(PASCAL, "Pa"), LevelValues(HECTO[::-1], "mb"), [2, 1, 0]),
        (LevelValues(HECTO, "hPa"), LevelValues(HECTO), None),
        (LevelValues([5, 10], "m", "down"), LevelValues([-10, -5], "m", "up"), [1, 0]),
        # Each could be meant: 200 Pa and 200 hPa are there.
        (HECTO, LevelValues(BOTH, "Pa"), "in hPa as well as in Pa"),
        (HECTO, BOTH, "in hPa as well as in Pa"),
        (LevelValues(HECTO, "hPa"), LevelValues(HECTO, "Pa"), "1000.0] Pa, but"),
        (LevelValues(HECTO, "hPa"), LevelValues(HECTO, "m"), "1000.0] m, but"),
        (LevelValues([2, 3], "", "up"), LevelValues([2, 3], "", "down"), "down, but"),
    ],
)
def test_levels_have_a_unit_and_a_direction(wanted, there, expected):
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            places(wanted, there, "level", some=True)
    else:
        found = places(wanted, there, "level", some=True)
        assert (found if found is None else found.tolist()) == expected


def test_common_levels_of_which_two_readings_fit():
    found = common_indices(LevelValues(HECTO, "hPa"), BOTH, "level")
    assert found == [(0, 3), (1, 4), (2, 5)]
    with pytest.raises(ValueError, match="in hPa as well as in Pa"):
        common_indices(HECTO, BOTH, "level")


def test_coordinates_of_a_checkpoint_are_read_back():
    levels = LevelValues([200, 500], "hPa", "down")
    axes = GridCoordinates(as_values(ROWS), as_values(COLUMNS), levels, where="here")
    sources = {"A": axes, "B": GridCoordinates()}
    written = Coordinates(**vars(axes.grid), calendar="noleap", sources=sources)
    found = Coordinates.from_json(
        json.loads(json.dumps(written.to_json())), "there", {}
    )
    assert found.sources == written.sources
    assert attributes_of(found.sources["A"].levels) == attributes_of(levels)
    assert (found.grid, found.calendar) == (written.grid, "noleap")
    assert (found.where, found.sources["A"].where) == ("there", "there")


def test_unknown_coordinates_are_filled():
    filled = GridCoordinates(levels=(1.0, 2.0), where="a").over(
        GridCoordinates((3.0,), (4.0,), (5.0,), "b")
    )
    assert filled == GridCoordinates((3.0,), (4.0,), (1.0, 2.0))
    assert (filled.where, GridCoordinates().over(GridCoordinates(where="b")).where) == (
        "a",
        "b",
    )
    assert as_values(np.zeros((2, 2))) is None


def test_dates_of_another_calendar_are_refused_with_both():
    like = Coordinates(calendar="noleap", where="checkpoint 5")
    text = "data: the dates are in the calendar standard, expected noleap as in check"
    with pytest.raises(ValueError, match=text):
        like.check_calendar("standard", "data")
    for known, calendar in ((like, "noleap"), (like, None), (Coordinates(), "noleap")):
        known.check_calendar(calendar, "")
