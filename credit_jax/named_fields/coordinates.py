"""Coordinates of fields, and the one function that matches those of two origins.

Whatever meets a run (data of another run, validation data, statistics, latitude
weights, truth, climatologies, masks) is matched by its coordinates. What has the same
values in another order is put in order; all else is an error with both values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from credit_jax.named_fields.units import conversion, unit_of

Kind: TypeAlias = Literal["latitude", "longitude", "level"]

# Largest difference of two equal latitudes or longitudes, in degrees.
DEGREE_TOLERANCE = 1e-2
# Largest relative difference of two equal levels: rounding of float32 and of text.
SAME_LEVEL = 1e-4
# Largest difference of equal values, relative to the spacing between neighbors.
_OF_SPACING = 0.25
# hPa that no level has: larger pressures are in Pa.
_MOST_HPA = 1200.0

CoordinateValues: TypeAlias = tuple[float, ...]
_LOG = logging.getLogger("credit_jax")


class LevelValues(CoordinateValues):
    """Values of levels, and what their file says of them."""

    unit: str  # as the file spells it; "" if it is unknown, or of numbers
    positive: str  # "up", "down", or "" if it is unknown

    def __new__(cls, values: Any, unit: str = "", positive: str = "") -> LevelValues:
        levels = super().__new__(cls, map(float, values))
        levels.unit = unit if unit_of(unit) not in (None, unit_of("1")) else ""
        levels.positive = positive
        return levels

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.unit, self.positive

    def take(self, indices: Iterable[int]) -> LevelValues:
        """Some of the levels."""
        return LevelValues([self[i] for i in indices], self.unit, self.positive)


def attributes_of(levels: Any) -> dict[str, str]:
    """CF's attributes of levels, those that are known."""
    about = {"units": "unit", "positive": "positive"}
    texts = {key: getattr(levels, name, "") for key, name in about.items()}
    return {key: text for key, text in texts.items() if text}


@dataclass(frozen=True)
class GridCoordinates:
    """The coordinates of the fields of a source; None: unknown, or not along a dim."""

    latitude: CoordinateValues | None = None  # degrees of rows
    longitude: CoordinateValues | None = None  # of columns
    levels: CoordinateValues | None = None  # of 3-D variables, in order
    where: str = field(default="the data", compare=False)

    def over(self, other: GridCoordinates) -> GridCoordinates:
        """Returns these coordinates, and those of `other` where they are unknown."""
        pairs = zip(self.values, other.values, strict=True)
        has_values = any(value is not None for value in self.values)
        origin = self.where if has_values else other.where
        return GridCoordinates(*(b if a is None else a for a, b in pairs), where=origin)

    @property
    def values(self) -> tuple[CoordinateValues | None, ...]:
        """Latitudes, longitudes and levels."""
        return self.latitude, self.longitude, self.levels

    @property
    def grid(self) -> GridCoordinates:
        """The coordinates without levels."""
        return GridCoordinates(self.latitude, self.longitude, None, self.where)


UNKNOWN = GridCoordinates()


@dataclass(frozen=True)
class Coordinates(GridCoordinates):
    """The coordinates of x and y, without levels, and of the sources of a run."""

    calendar: str | None = None
    sources: Mapping[str, GridCoordinates] = field(default_factory=dict)
    # By variable key; checkpoints record them apart.
    units: Mapping[str, str] = field(default_factory=dict, compare=False)

    def regridded(self, grid: Any) -> Coordinates:
        """These with the latitudes and longitudes of a grid, unless it is None."""
        if grid is None:
            return self
        axes = {
            name: as_values(getattr(grid, name)) for name in ("latitude", "longitude")
        }
        return replace(self, **axes)

    def to_json(self) -> dict[str, Any]:
        """Returns the coordinates as JSON values."""
        names = ("latitude", "longitude", "levels")
        sources = {
            name: dict(zip(names, axes.values, strict=True))
            | attributes_of(axes.levels)
            for name, axes in self.sources.items()
        }
        return {
            "latitude": self.latitude,
            "longitude": self.longitude,
            "calendar": self.calendar,
            "sources": sources,
        }

    def check_calendar(self, calendar: str | None, origin: str) -> None:
        """Checks that dates are in the calendar of the run, if both are known."""
        if None not in (self.calendar, calendar) and calendar != self.calendar:
            raise ValueError(
                f"{origin}: the dates are in the calendar {calendar}, expected "
                f"{self.calendar} as in {self.where}; convert the files, or name that "
                "calendar in data.calendar"
            )

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], origin: str, units: Mapping[str, str]
    ) -> Coordinates:
        """The inverse of `to_json`."""
        sources = {
            name: GridCoordinates(
                as_values(axes.get("latitude")),
                as_values(axes.get("longitude")),
                axes.get("levels")
                and LevelValues(
                    axes["levels"], axes.get("units", ""), axes.get("positive", "")
                ),
                origin,
            )
            for name, axes in values.get("sources", {}).items()
        }
        latitude, longitude = map(as_values, map(values.get, ("latitude", "longitude")))
        calendar = values.get("calendar")
        return cls(latitude, longitude, None, origin, calendar, sources, units)


def as_values(array: Any) -> CoordinateValues | None:
    """Coordinate values of an array; None for None and for arrays of other dims."""
    if array is None or np.ndim(array) != 1:
        return None
    return tuple(np.asarray(array, np.float64).tolist())


def indices_of(
    requested: Any,
    available: Any,
    kind: Kind,
    origin: str,
    requested_origin: str,
    *,
    some: bool = False,
    of_run: bool = False,
) -> np.ndarray | None:
    """Returns the positions of coordinate values in another; None for 0, 1, 2, ..."""
    if requested is None or available is None:
        return None
    factors = readings(requested, available) if kind == "level" else (1.0,)
    pair = requested, available
    requested, available = (np.asarray(x, np.float64).ravel() for x in pair)
    check_once(available, kind, origin)
    # Levels that one side only numbers, from 0 or from 1, are taken in order, with a
    # note, if there are as many on the other side; no numbers replace those of a run.
    if kind == "level" and is_numbered(requested, available):
        if of_run and counts(available):
            raise _differ(*pair, kind, origin, requested_origin)
        _note(
            f"{origin}: its levels {_listed(pair[1])} are taken in order as "
            f"{_listed(pair[0])} of {requested_origin}: one side only numbers them"
        )
        return None
    readable = [_places(requested, available * factor, kind) for factor in factors]
    # With `some`, `available` may have further values, which are left out.
    complete = some or len(available) == len(requested)
    fits = [x for x in readable if x is not None and complete]
    if len(fits) > 1 and factors[0] != 1.0:
        raise _ambiguous(*pair, origin, requested_origin)
    if not fits:
        raise _differ(*pair, kind, origin, requested_origin)
    indices = fits[0]
    full = len(available) == len(indices)
    in_order = full and np.array_equal(indices, np.arange(len(indices)))
    return None if in_order else indices


@cache
def _note(text: str) -> None:
    """Logs a note, once."""
    _LOG.warning("note: %s", text)


def readings(levels: Any, other: Any) -> tuple[float, ...]:
    """Factors that may bring levels to the unit of others, the likely one first."""
    units, ways, tops = zip(
        *(
            (getattr(x, "unit", ""), getattr(x, "positive", ""), max(x, default=0.0))
            for x in (levels, other)
        ),
        strict=True,
    )
    pressures = [unit and conversion(unit, "Pa") for unit in units]
    turned = "" not in ways and ways[0] != ways[1] and not any(pressures)
    if all(units):
        change = conversion(units[1], units[0])
        return () if change is None else (-change[0] if turned else change[0],)
    if turned or (any(units) and not any(pressures)):
        return () if turned else (1.0,)
    # Levels without a unit are pressures in hPa, or else in Pa (those above 1200
    # always), or values of anything. If their only reading beside equal numbers is
    # another one, that comes first: where both fit, which of them is meant cannot be
    # known.
    choices = [
        (unit,) if unit else ("Pa",) if top > _MOST_HPA else ("hPa", "Pa")
        for unit, top in zip(units, tops, strict=True)
    ]
    changes = [conversion(b, a) for a in choices[0] for b in choices[1]]
    return tuple(dict.fromkeys(change[0] for change in changes if change))


def check_once(values: Any, kind: Kind, origin: str) -> None:
    """Checks that a coordinate has each value once."""
    values = np.asarray(values, np.float64).ravel()
    ordered = np.sort(values % 360.0 if kind == "longitude" else values)
    again = ordered[1:][np.diff(ordered) == 0]
    if again.size:
        raise ValueError(
            f"{origin}: the {kind} {again[0]:g} occurs more than once; which of its "
            "fields is meant cannot be known, remove the others"
        )


def common_indices(
    current: Any, other: Any, kind: Kind, origin: str = "the other"
) -> list[tuple[int, int]]:
    """Positions of the values that two coordinates have in common, in both."""
    check_once(other, kind, origin)
    factors = readings(current, other) if kind == "level" else (1.0,)
    values = np.asarray(other, np.float64)
    shared = list[list[tuple[int, int]]]()
    for factor in factors:
        near = (_places(np.array([x]), values * factor, kind) for x in current)
        shared.append([(k, int(x[0])) for k, x in enumerate(near) if x is not None])
    # Of several `readings` of levels the one in which most values are common.
    best = max(shared, key=len, default=[])
    if best and factors[0] != 1.0 and sum(len(x) == len(best) for x in shared) > 1:
        raise _ambiguous(current, other, origin, "the other")
    return best


def is_numbered(current: Any, other: Any) -> bool:
    """Whether one of two level coordinates only numbers as many levels of the other."""
    current, other = (np.asarray(x, np.float64).ravel() for x in (current, other))
    # Numbers on both sides are values: in another order they are not in order.
    if len(current) != len(other) or np.array_equal(np.sort(current), np.sort(other)):
        return False
    return counts(current) != counts(other)


def counts(levels: Any) -> bool:
    """Whether values of several levels count them, from 0 or from 1."""
    number, values = len(levels), np.asarray(levels, np.float64)
    return number > 1 and any(
        np.array_equal(values, np.arange(number) + first) for first in (0, 1)
    )


def _places(
    requested: Float[np.ndarray, " requested"],
    available: Float[np.ndarray, " available"],
    kind: Kind,
) -> np.ndarray | None:
    """The position of each value; None if none or more than one is near."""
    if not (
        np.isfinite(requested).all() and np.isfinite(available).all() and available.size
    ):
        return None
    period = 360.0 if kind == "longitude" else None
    # Less than a quarter of the spacing.
    limit = np.full(requested.shape, DEGREE_TOLERANCE)
    if kind == "level":
        limit = SAME_LEVEL * np.maximum(np.abs(requested), 1e-12)
    ordered = np.sort(requested % period if period else requested)
    gaps = np.diff(ordered)
    if period and requested.size > 1:
        gaps = np.append(gaps, ordered[0] + period - ordered[-1])
    if gaps.size and gaps.min() > 0:
        limit = np.minimum(limit, _OF_SPACING * gaps.min())
    order = np.argsort(available % period if period else available, kind="stable")
    values = available[order] % period if period else available[order]
    asked = requested % period if period else requested
    if period:
        values = np.concatenate([values[-1:] - period, values, values[:1] + period])
        order = np.concatenate([order[-1:], order, order[:1]])
    right = np.searchsorted(values, asked).clip(1, max(len(values) - 1, 1))
    right = np.minimum(right, len(values) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.abs(values[left] - asked) <= np.abs(values[right] - asked)
    chosen = np.where(nearer, left, right)
    first = np.searchsorted(values, asked - limit)
    near = np.searchsorted(values, asked + limit, side="right") - first
    if (near > 1).any() or (np.abs(values[chosen] - asked) > limit).any():
        return None
    indices = order[chosen]
    return indices if np.unique(indices).size == indices.size else None


def _ambiguous(levels: Any, other: Any, path: str, origin: str) -> ValueError:
    return ValueError(
        f"{path}: its levels {_listed(other)} are those of {origin}, "
        f"{_listed(levels)}, in hPa as well as in Pa, and one of both says no units; "
        "give its level coordinate the attribute units"
    )


def _differ(
    requested: Any, available: Any, kind: Kind, origin: str, requested_origin: str
) -> ValueError:
    if kind == "level":
        return ValueError(
            f"{origin}: has the levels {_listed(available)}, but {requested_origin} "
            f"has {_listed(requested)}; give both the same levels"
        )
    texts = (
        " x ".join(map(str, x.shape)) + f" {kind}s run from {x.flat[0]:g} to "
        f"{x.flat[-1]:g}"
        if x.size
        else f"there is no {kind}"
        for x in map(np.asarray, (available, requested))
    )
    worst = ""
    if np.shape(requested) == np.shape(available) != (0,):
        distance = np.abs(np.subtract(requested, available))
        worst = f", up to {distance.max():g} degrees apart"
    return ValueError(
        f"{origin}: {f', but in {requested_origin} '.join(texts)}{worst}; they are not "
        "the same places. Bring both to one grid"
    )


def listed(values: Any) -> str:
    """Values of levels for people; "none" where there are none."""
    return ", ".join(f"{x:g}" for x in (() if values is None else values)) or "none"


def _listed(values: Any) -> str:
    displayed = np.asarray(values, float).ravel()
    text = f"{displayed[:20].tolist()}{' ...' if displayed.size > 20 else ''}"
    return " ".join((text, *attributes_of(values).values()))


def are_numbered_alike(values: Any, numbers: Any) -> bool:
    """Whether levels of data have the numbers of levels of a file, in any order."""
    if values is None or numbers is None:
        return False
    # Hybrid levels are known by their numbers, which data may have as values of their
    # level coordinate.
    current, other = (np.sort(np.asarray(x, float)) for x in (values, numbers))
    return np.array_equal(current, other)


def take_indices(
    array: np.ndarray, indices: np.ndarray | None, axis: int
) -> np.ndarray:
    """Puts an axis of an array in order; `indices` are those of `indices_of`."""
    return array if indices is None else np.take(array, indices, axis=axis)


def on_grid(
    array: np.ndarray, axes: GridCoordinates, grid: GridCoordinates
) -> np.ndarray:
    """Puts the rows and columns of an array, its last axes, in the order of a grid."""
    origin = axes.where, grid.where
    rows = indices_of(grid.latitude, axes.latitude, "latitude", *origin)
    columns = indices_of(grid.longitude, axes.longitude, "longitude", *origin)
    return take_indices(take_indices(array, rows, -2), columns, -1)


def grid_indices(
    requested: tuple[Any, Any], available: tuple[Any, Any], label: str, origin: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The positions of the rows and columns of a grid in another; see `indices_of`."""
    indices = list[np.ndarray | None]()
    kinds: tuple[Kind, ...] = ("latitude", "longitude")
    for kind, first, other in zip(kinds, requested, available, strict=True):
        if first is None or other is None or np.ndim(first) == np.ndim(other) == 1:
            indices.append(indices_of(first, other, kind, label, origin))
            continue
        # Points of a curvilinear grid (y, x) must be in order.
        turned = np.shape(first) == np.shape(other) and np.subtract(first, other)
        if (
            turned is False
            or np.abs((turned + 180) % 360 - 180).max() > DEGREE_TOLERANCE
        ):
            raise _differ(first, other, kind, label, origin)
        indices.append(None)
    return indices[0], indices[1]


def check_shared_grid(
    requested: tuple[Any, Any], available: tuple[Any, Any], label: str, origin: str
) -> None:
    """Checks that two grids are the same, in the same order."""
    indices = grid_indices(requested, available, label, origin)
    check_order(indices, "rows or columns", label, origin)


def check_order(
    indices: Iterable[np.ndarray | None], subject: str, label: str, origin: str
) -> None:
    """Checks that positions of `indices_of` are in order."""
    if any(index is not None for index in indices):
        raise ValueError(
            f"{label}: {subject} are in another order than those of {origin}, expected "
            "the same; bring them to that order"
        )
