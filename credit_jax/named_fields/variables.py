"""A table of variables on one grid, and the one `align` of two such tables.

Forecasts, truths, climatologies, packages and data are compared by `Variables.align`:
grids, levels and units. What has another order or unit is put in order and converted;
all else is an error with both values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import coordinates
from credit_jax.named_fields.coordinates import LevelValues, counts, listed
from credit_jax.named_fields.units import comparable, conversion, differ, text_of

LEVEL = "level"
# Positions of levels in a field; None for a variable without levels.
LevelPlaces: TypeAlias = tuple[int, ...] | None
# Name of a variable -> positions of its levels.
LevelSelection: TypeAlias = Mapping[str, LevelPlaces]


@dataclass(frozen=True, eq=False)
class Variable:
    """What is known of a variable."""

    key: str  # "source/field type/3d or 2d/name", or its name in a file
    levels: np.ndarray | None = None  # values; None without levels
    chosen: LevelPlaces = None  # positions of these levels in the field; None is all
    level_dim: str = LEVEL  # name of the level coordinate
    units: str = ""  # "" if unknown
    long_name: str = ""
    level_units: str = ""  # see `labeled_levels`
    constant: bool = False  # whether a file has it without times, for all of them

    @property
    def name(self) -> str:
        """The name of the variable in files."""
        return self.key.split("/")[-1]


@dataclass(frozen=True, eq=False)
class Alignment:
    """Where a table of variables is in another one."""

    levels: LevelSelection = field(default_factory=dict)  # in the table
    other_levels: LevelSelection = field(default_factory=dict)  # in the other table
    rows: np.ndarray | None = None  # positions in the other grid; None keeps the order
    columns: np.ndarray | None = None
    # (channel, 1, 1), or () for all channels, to the units of the table; None keeps
    # them.
    factor: np.ndarray | np.float32 | None = None
    offset: np.ndarray | np.float32 | None = None
    # Levels that are left out or only numbered, and units that are not known.
    notes: tuple[str, ...] = ()

    def __call__(
        self, channels: Float[np.ndarray, "... lat lon"]
    ) -> Float[np.ndarray, "... lat lon"]:
        """Channels of the other table, at `other_levels`, as those of the table."""
        if self.factor is not None:
            channels = channels * self.factor
        if self.offset is not None:
            channels = channels + self.offset
        if self.rows is not None:
            channels = channels[..., self.rows, :]
        return channels if self.columns is None else channels[..., self.columns]


@dataclass(frozen=True, eq=False)
class Variables:
    """Variables on one grid."""

    where: str  # origin, for errors
    table: Mapping[str, Variable]
    latitude: np.ndarray  # degrees, (lat,), or (y, x) on a curvilinear grid
    longitude: np.ndarray

    def select(self, names: Iterable[str]) -> Variables:
        """Some of the variables, in this order."""
        names = [*names]
        if missing := [name for name in names if name not in self.table]:
            raise ValueError(
                f"{self.where} has no {', '.join(missing)}; it has "
                f"{', '.join(sorted(self.table)) or 'no fields'}"
            )
        return replace(self, table={name: self.table[name] for name in names})

    def align(self, other: Variables, *, complete: bool = False) -> Alignment:
        """Finds the variables of this table in another one, which may have more."""
        rows, columns = coordinates.grid_indices(
            (self.latitude, self.longitude),
            (other.latitude, other.longitude),
            other.where,
            self.where,
        )
        levels, other_levels, notes, unknown = {}, {}, list[str](), list[str]()
        numbered, changes = list[str](), list[tuple[float, float]]()
        others = other.select(self.table).table
        for name, variable in self.table.items():
            candidate = others[name]
            for origin, side in ((self.where, variable), (other.where, candidate)):
                if side.constant:
                    raise ValueError(
                        f"{origin}: {name} has no dim of times, and would be compared "
                        "at all of them; leave it out, or give it times"
                    )
            pair = self._levels(name, candidate, other.where)
            levels[name], other_levels[name] = pair
            if pair[0] is not None and pair[1] is not None:
                assert variable.levels is not None, "positions are of levels"
                left = np.delete(variable.levels, pair[0])
                if left.size:
                    text = (
                        f"{name}: {other.where} has no level {listed(left)} of "
                        f"{self.where}; it has {listed(candidate.levels)}"
                    )
                    if complete:  # no levels may be left out
                        raise ValueError(text)
                    notes.append(f"{text}; left out")
                if _one_is_numbered(variable.levels, candidate.levels):
                    numbered.append(name)
            change = conversion(candidate.units, variable.units)
            if change is None and differ(candidate.units, variable.units):
                raise ValueError(
                    f"{other.where}: {name} is in {candidate.units!r}, expected "
                    f"{variable.units!r} as in {self.where}; convert one of them"
                )
            changes += [change or (1.0, 0.0)] * len(pair[0] or (0,))
            named = candidate.units and variable.units
            if named and not comparable(candidate.units, variable.units):
                unknown.append(f"{name} in {variable.units!r} and {candidate.units!r}")
        if numbered:
            pair = (x[numbered[0]].levels for x in (self.table, others))
            texts = " are taken in order as ".join(map(listed, pair))
            notes.append(
                f"{', '.join(numbered)}: levels {texts} of {other.where}: one side "
                "only numbers them"
            )
        if unknown:
            notes.append(f"units that cannot be compared: {', '.join(unknown)}")
        factor, offset = (
            None
            if {*values} <= {neutral}
            else np.float32(values[0])
            if len({*values}) == 1
            else np.asarray(values, np.float32)[:, None, None]
            for neutral, values in (
                (1.0, [factor for factor, _ in changes]),
                (0.0, [offset for _, offset in changes]),
            )
        )
        indices = levels, other_levels, rows, columns
        return Alignment(*indices, factor, offset, tuple(notes))

    def _levels(
        self, name: str, candidate: Variable, origin: str
    ) -> tuple[LevelPlaces, LevelPlaces]:
        """Positions of the common levels in both, in the order of this table."""
        variable = self.table[name]
        if variable.levels is None and candidate.levels is None:
            return None, None
        sides = f"{listed(variable.levels)}; {origin} has {listed(candidate.levels)}"
        if variable.levels is None or candidate.levels is None:
            raise ValueError(
                f"{name}: {self.where} has the levels {sides}; both must have some, or "
                "none: leave it out"
            )
        if _one_is_numbered(variable.levels, candidate.levels):
            if len(variable.levels) == len(candidate.levels):
                indices = tuple(range(len(variable.levels)))
                return indices, indices
            raise ValueError(
                f"{name}: one side only numbers its levels, and there are not as many "
                f"on the other: {self.where} has {sides}; name data.source.*.levels"
            )
        pairs = coordinates.common_indices(
            LevelValues(variable.levels, variable.level_units),
            LevelValues(candidate.levels, candidate.level_units),
            LEVEL,
            origin,
        )
        if not pairs:
            raise ValueError(
                f"{name}: no level of {self.where} is in {origin}: {sides}"
            )
        levels, other_levels = zip(*pairs, strict=True)
        return tuple(map(int, levels)), tuple(map(int, other_levels))


def labeled_levels(
    levels: Any, attributes: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    """Values of a level coordinate, pressures in hPa, and their units."""
    # These are "hPa", "sigma", those of the file, or "" for numbers of levels.
    unit = text_of(attributes, "units")
    change = conversion(unit, "hPa")
    values = np.multiply(levels, change[0] if change else 1.0)
    if change or counts(values):
        return values, "" if counts(values) else "hPa"
    if "sigma" in text_of(attributes, "standard_name") and np.max(values) <= 1.5:
        return values, "sigma"
    return values, "" if unit in ("1", "level", "levels", "layer") else unit


def is_numbered(levels: np.ndarray) -> bool:
    """Whether levels only number themselves, from 0 or 1, as nothing names them."""
    return counts(levels) or [*levels] == [0]


def _one_is_numbered(levels: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether levels are numbers on one side."""
    # Of some levels of a forecast, all of which the other side has by number, they are
    # on both.
    if other is None or np.isin(levels, other).all():
        return False
    both = is_numbered(levels), is_numbered(other)
    return any(both) and (not all(both) or levels[0] != other[0])
