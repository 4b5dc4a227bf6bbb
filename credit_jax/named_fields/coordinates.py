"""Coordinates of fields, and the one function that matches those of two origins.

Whatever meets a run (data of another run, validation data, statistics, latitude
weights, truth, climatologies, masks) is matched by its coordinates. What has the same
values in another order is put in order; all else is an error with both values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

Kind: TypeAlias = Literal["latitude", "longitude", "level"]

# Largest difference of two equal latitudes or longitudes, in degrees.
SAME_DEGREES = 1e-2
# Largest relative difference of two equal levels: rounding of float32 and of text.
SAME_LEVEL = 1e-4
# Largest difference of equal values, relative to the spacing between neighbors.
_OF_SPACING = 0.25
# Factors between units of pressure, Pa and hPa, in which levels may be given.
_UNITS = (1.0, 0.01, 100.0)

CoordinateValues: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class GridCoordinates:
    """The coordinates of the fields of one source.

    Attributes:
        latitude, longitude: degrees of rows and of columns; None if they are unknown
            or vary along rows or columns.
        levels: values of the levels of 3-D variables, in order; None if unknown.
        where: origin, for errors.
    """

    latitude: CoordinateValues | None = None
    longitude: CoordinateValues | None = None
    levels: CoordinateValues | None = None
    where: str = field(default="the data", compare=False)

    def over(self, other: GridCoordinates) -> GridCoordinates:
        """Returns these coordinates, and those of `other` where they are unknown."""
        pairs = zip(self.values, other.values, strict=True)
        known = any(value is not None for value in self.values)
        where = self.where if known else other.where
        return GridCoordinates(*(b if a is None else a for a, b in pairs), where=where)

    @property
    def values(
        self,
    ) -> tuple[
        CoordinateValues | None, CoordinateValues | None, CoordinateValues | None
    ]:
        """Latitudes, longitudes and levels."""
        return self.latitude, self.longitude, self.levels

    @property
    def grid(self) -> GridCoordinates:
        """The coordinates without levels."""
        return GridCoordinates(self.latitude, self.longitude, None, self.where)


UNKNOWN = GridCoordinates()


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the fields of a run.

    Attributes:
        latitude, longitude: degrees of the rows and columns of x and y; None if they
            are unknown or vary along rows or columns.
        calendar: calendar of the times; None if unknown.
        sources: name of a source -> its coordinates as they are read.
        where: origin, for errors.
    """

    latitude: CoordinateValues | None = None
    longitude: CoordinateValues | None = None
    calendar: str | None = None
    sources: Mapping[str, GridCoordinates] = field(default_factory=dict)
    where: str = "the data"

    def to_json(self) -> dict[str, Any]:
        """Returns the coordinates as JSON values."""
        names = ("latitude", "longitude", "levels")
        sources = {
            name: dict(zip(names, axes.values, strict=True))
            for name, axes in self.sources.items()
        }
        return {
            "latitude": self.latitude,
            "longitude": self.longitude,
            "calendar": self.calendar,
            "sources": sources,
        }

    @property
    def grid(self) -> GridCoordinates:
        """Those of x and y."""
        return GridCoordinates(self.latitude, self.longitude, None, self.where)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> Coordinates:
        """The inverse of `to_json`."""
        names = ("latitude", "longitude", "levels")
        sources = {
            name: GridCoordinates(
                *(as_values(axes.get(key)) for key in names), where=where
            )
            for name, axes in values.get("sources", {}).items()
        }
        latitude, longitude = (
            as_values(values.get(name)) for name in ("latitude", "longitude")
        )
        return cls(latitude, longitude, values.get("calendar"), sources, where)


def as_values(array: Any) -> CoordinateValues | None:
    """Coordinate values of an array; None for None and for arrays of other dims."""
    if array is None or np.ndim(array) != 1:
        return None
    return tuple(np.asarray(array, np.float64).tolist())


def places_of(
    requested: Any,
    available: Any,
    kind: Kind,
    where: str,
    requested_where: str,
    *,
    some: bool = False,
) -> np.ndarray | None:
    """Returns the positions of coordinate values in another coordinate.

    Longitudes that differ by 360 degrees are equal, and so are levels in Pa and hPa.
    Levels that one side only numbers, from 0 or from 1, are taken in order if there are
    as many on the other side.

    Args:
        requested: values of one origin, in order; None if unknown.
        available: values of the other origin; None if unknown.
        kind: the coordinate.
        where: file of `available`, for the error.
        requested_where: file or origin of `requested`, for the error.
        some: whether `available` may have further values, which are left out.

    Returns:
        (requested,) positions; None if they are 0, 1, 2, ..., and where a side is
        unknown.

    Raises:
        ValueError: the values differ, or one of `available` occurs twice.
    """
    if requested is None or available is None:
        return None
    requested, available = (
        np.asarray(x, np.float64).ravel() for x in (requested, available)
    )
    check_once(available, kind, where)
    if kind == "level" and is_numbered(requested, available):
        return None
    for factor in _UNITS if kind == "level" else _UNITS[:1]:
        places = _places(requested, available * factor, kind)
        if places is not None and (some or len(available) == len(requested)):
            whole = len(available) == len(places)
            in_order = whole and np.array_equal(places, np.arange(len(places)))
            return None if in_order else places
    raise ValueError(_differ(requested, available, kind, where, requested_where))


def check_once(values: Any, kind: Kind, where: str) -> None:
    """Checks that a coordinate has each value once.

    Args:
        values: values of the coordinate; longitudes 360 degrees apart are equal.
        kind: the coordinate.
        where: file of the values, for the error.

    Raises:
        ValueError: a value occurs more than once.
    """
    values = np.asarray(values, np.float64).ravel()
    ordered = np.sort(values % 360.0 if kind == "longitude" else values)
    again = ordered[1:][np.diff(ordered) == 0]
    if again.size:
        raise ValueError(
            f"{where}: the {kind} {again[0]:g} occurs more than once; which of its "
            "fields is meant cannot be known, remove the others"
        )


def common_places(
    ours: Any, theirs: Any, kind: Kind, where: str = "the other"
) -> list[tuple[int, int]]:
    """Positions of the values that two coordinates have in common, in both.

    Levels in Pa and hPa are equal: the units are those in which most values are common.

    Args:
        ours, theirs: values of both.
        kind: the coordinate.
        where: file of `theirs`, for the error.

    Raises:
        ValueError: a value of `theirs` occurs more than once.

    >>> common_places([500.0, 850.0], [850.0, 700.0], "level")
    [(1, 0)]
    """
    theirs = np.asarray(theirs, np.float64)
    check_once(theirs, kind, where)
    best: list[tuple[int, int]] = []
    for factor in _UNITS if kind == "level" else _UNITS[:1]:
        pairs = _common(ours, theirs * factor, kind)
        best = pairs if len(pairs) > len(best) else best
    return best


def _common(ours: Any, theirs: np.ndarray, kind: Kind) -> list[tuple[int, int]]:
    pairs = []
    for place, value in enumerate(ours):
        other = _places(np.array([value]), theirs, kind)
        if other is not None:
            pairs.append((place, int(other[0])))
    return pairs


def is_numbered(ours: Any, theirs: Any) -> bool:
    """Whether one of two level coordinates only numbers as many levels of the other.

    Numbers on both sides are values: the same ones in another order are not in order.

    >>> is_numbered([500.0, 850.0], [0, 1]), is_numbered([2, 1], [1, 2])
    (True, False)
    """
    ours, theirs = (np.asarray(x, np.float64).ravel() for x in (ours, theirs))
    if len(ours) != len(theirs) or np.array_equal(np.sort(ours), np.sort(theirs)):
        return False
    return counts(ours) != counts(theirs)


def counts(levels: Any) -> bool:
    """Whether values of several levels count them, from 0 or from 1.

    >>> counts([1, 2, 3]), counts([3, 2, 1])
    (True, False)
    """
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
    limit = _limit(requested, kind, period)
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
    places = order[chosen]
    return places if np.unique(places).size == places.size else None


def _limit(
    requested: Float[np.ndarray, " requested"], kind: Kind, period: float | None
) -> Float[np.ndarray, " requested"]:
    """Largest difference of equal values: less than a quarter of their spacing."""
    if kind == "level":
        limit = SAME_LEVEL * np.maximum(np.abs(requested), 1e-12)
    else:
        limit = np.full(requested.shape, SAME_DEGREES)
    ordered = np.sort(requested % period if period else requested)
    gaps = np.diff(ordered)
    if period and requested.size > 1:
        gaps = np.append(gaps, ordered[0] + period - ordered[-1])
    if gaps.size and gaps.min() > 0:
        limit = np.minimum(limit, _OF_SPACING * gaps.min())
    return limit


def _differ(
    requested: np.ndarray,
    available: np.ndarray,
    kind: Kind,
    where: str,
    requested_where: str,
) -> str:
    if kind == "level":
        return (
            f"{where}: has the levels {_listed(available)}, but {requested_where} has "
            f"{_listed(requested)}; give both the same levels"
        )
    worst = ""
    if len(requested) == len(available) and len(requested):
        distance = np.abs(requested - available)
        worst = f", up to {distance.max():g} degrees apart"
    return (
        f"{where}: {_described(available, kind)}, but in {requested_where} "
        f"{_described(requested, kind)}{worst}; they are not the same places. Bring "
        "both to one grid"
    )


def _described(values: np.ndarray, kind: Kind) -> str:
    if not values.size:
        return f"there is no {kind}"
    return f"{len(values)} {kind}s run from {values[0]:g} to {values[-1]:g}"


def _listed(values: np.ndarray) -> str:
    return f"{values[:20].tolist()}{' ...' if values.size > 20 else ''}"


def are_numbered_alike(values: Any, numbers: Any) -> bool:
    """Whether levels of data have the numbers of levels of a file, in any order.

    Hybrid levels are known by their numbers, which data may have as values of their
    level coordinate.

    >>> are_numbered_alike([3.0, 2.0], [2, 3]), are_numbered_alike([50, 100], [1, 2])
    (True, False)
    """
    if values is None or numbers is None:
        return False
    ours, theirs = (np.sort(np.asarray(x, float)) for x in (values, numbers))
    return np.array_equal(ours, theirs)


def notes_on_calendar(
    like: Coordinates | None, calendar: str | None, where: str
) -> list[str]:
    """The note on data whose dates are in another calendar than those of a run.

    Args:
        like: coordinates of the run; None if unknown.
        calendar: calendar of the data; None if unknown.
        where: origin of the data.

    >>> notes_on_calendar(Coordinates(calendar="noleap"), "noleap", "the forecasts")
    []
    """
    if like is None or calendar is None or like.calendar in (None, calendar):
        return []
    return [
        f"{where}: its dates are in the calendar {calendar}, those of {like.where} in "
        f"{like.calendar}; they are taken as they are written"
    ]


def take_places(array: np.ndarray, places: np.ndarray | None, axis: int) -> np.ndarray:
    """Puts an axis of an array in order; `places` are those of `places_of`."""
    return array if places is None else np.take(array, places, axis=axis)
