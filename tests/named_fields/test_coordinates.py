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
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Case, Cases

CASES = Cases("coordinates")
ROWS, COLUMNS = np.linspace(80, -80, 5), np.arange(8) * 45.0
HECTO, PASCAL = [200.0, 500.0, 1000.0], [2e4, 5e4, 1e5]
BOTH, UP = [*HECTO, *PASCAL], [2, 3]


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


def refused(wanted, there, kind, some):
    places(wanted, there, kind, some=some)


NEAR = np.arange(4) * 0.01
PAIR = [500.0, 850.0]
for name, (kind, wanted, there, *some) in {
    "other rows": ("latitude", ROWS, 90 - ROWS),
    "fewer rows": ("latitude", ROWS, ROWS[:-1]),
    "rows apart": ("latitude", ROWS, ROWS + 0.02),
    "no rows": ("latitude", ROWS, [np.nan] * 5),
    # A grid of a hundredth of a degree: its neighbors are not the same places.
    "neighbors": ("latitude", NEAR, NEAR + 0.005),
    "other levels": ("level", PAIR, [500.0, 925.0]),
    "more levels": ("level", PAIR, [100.0, 850.0, 500.0, 200.0]),
    "a longitude twice": ("longitude", COLUMNS, [*COLUMNS[:-1], 0.0], True),
    "around the globe": ("longitude", COLUMNS, [*COLUMNS, 360.0], True),
    "a latitude twice": ("latitude", ROWS, [*ROWS, ROWS[2]], True),
    "a level twice": ("level", PAIR, [*PAIR, 500.0], True),
    # Numbers that stand for levels are values of their own file.
    "a number twice": ("level", PAIR, [1, 1], True),
    "two values near one": ("level", PAIR, [500.0, 500.01, 850.0], True),
    # Each could be meant: 200 Pa and 200 hPa are there.
    "two units": ("level", HECTO, LevelValues(BOTH, "Pa"), True),
    "two units, not said": ("level", HECTO, BOTH, True),
    "Pa for hPa": ("level", LevelValues(HECTO, "hPa"), LevelValues(HECTO, "Pa"), True),
    "m for hPa": ("level", LevelValues(HECTO, "hPa"), LevelValues(HECTO, "m"), True),
    "down for up": ("level", LevelValues(UP, "", "up"), LevelValues(UP, "", "down")),
}.items():
    CASES.add(Case(name, refused, (wanted, there, kind, bool(some))))


@CASES.case
def a_level_twice_of_two_coordinates():
    common_indices([500.0], [500.0, 850.0, 500.0], "level", "t.nc")


@CASES.case
def two_units_of_two_coordinates():
    common_indices(HECTO, BOTH, "level")


@CASES.case
def numbers_are_not_those_of_a_run():
    places(PAIR, [1, 2], "level", of_run=True)


@CASES.case
def dates_of_another_calendar():
    like = Coordinates(calendar="noleap", where="checkpoint 5")
    for calendar in ("noleap", None):
        like.check_calendar(calendar, "")
    Coordinates().check_calendar("noleap", "")
    like.check_calendar("standard", "data")


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


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        (LevelValues(HECTO, "hPa"), LevelValues(BOTH, "Pa"), [3, 4, 5]),
        (LevelValues(HECTO, "millibars"), LevelValues(BOTH), [3, 4, 5]),
        (LevelValues(HECTO), LevelValues(PASCAL[::-1], "Pa"), [2, 1, 0]),
        (LevelValues(PASCAL, "Pa"), LevelValues(HECTO[::-1], "mb"), [2, 1, 0]),
        (LevelValues(HECTO, "hPa"), LevelValues(HECTO), None),
        (LevelValues([5, 10], "m", "down"), LevelValues([-10, -5], "m", "up"), [1, 0]),
    ],
)
def test_levels_have_a_unit_and_a_direction(wanted, there, expected):
    found = places(wanted, there, "level", some=True)
    assert (found if found is None else found.tolist()) == expected


def test_common_levels_of_which_two_readings_fit():
    found = common_indices(LevelValues(HECTO, "hPa"), BOTH, "level")
    assert found == [(0, 3), (1, 4), (2, 5)]


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
