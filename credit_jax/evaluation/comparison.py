"""Matches the channels of forecasts with those of truth and climatology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.evaluation.climatologies import ClimatologyFields
from credit_jax.evaluation.grid_file import (
    Alignment,
    GridVariable,
    LevelSelection,
    align,
)
from credit_jax.evaluation.references import Reference
from credit_jax.evaluation.scores import CLIMATOLOGY, PERSISTENCE, TRUTH
from credit_jax.evaluation.sums import ScoredChannel
from credit_jax.io.netcdf import attribute_value
from credit_jax.named_fields.coordinates import LevelValues, common_places
from credit_jax.named_fields.units import comparable, conversion, differ


@dataclass(frozen=True, eq=False)
class ScoreComparison:
    """The channels of the scores, and their positions in forecast and references.

    Attributes:
        channels: channels of the scores, in order.
        forecast: positions of the levels in the forecast, by variable.
        truth: the truth.
        in_truth: positions of the levels in the truth.
        to_truth: alignment of the rows and columns of the truth.
        climatology, in_climatology, to_climatology: the same of the climatology.
        notes: variables and levels that are left out, one line each.
        training_dates: how many dates are in the training period.
    """

    channels: tuple[ScoredChannel, ...]
    forecast: LevelSelection
    truth: Reference
    in_truth: LevelSelection
    to_truth: Alignment
    climatology: ClimatologyFields | None = None
    in_climatology: LevelSelection = field(default_factory=dict)
    to_climatology: Alignment = field(default_factory=Alignment)
    notes: tuple[str, ...] = ()
    training_dates: str = "unknown"

    def at(
        self, time: np.datetime64
    ) -> dict[str, Float[np.ndarray, "channel lat lon"]]:
        """Truth and climatology at a time, on the grid of the forecast."""
        references = {TRUTH: self.to_truth(self.truth.read(time, self.in_truth))}
        if self.climatology is not None:
            fields = self.climatology.read(time, self.in_climatology)
            references[CLIMATOLOGY] = self.to_climatology(fields)
        return references

    def persistence(
        self, start: np.datetime64
    ) -> dict[str, Float[np.ndarray, "channel lat lon"]]:
        """The forecast of persistence: the truth at the start date."""
        return {PERSISTENCE: self.to_truth(self.truth.read(start, self.in_truth))}


def compare(
    variables: Mapping[str, GridVariable],
    coordinates: tuple[np.ndarray, np.ndarray],
    truth: Reference,
    names: Sequence[str] = (),
) -> ScoreComparison:
    """Finds the channels that forecast and truth have in common.

    Args:
        variables: variables of the forecast, by name.
        coordinates: its latitudes and longitudes.
        truth: opened.
        names: variables to compare; all by default.

    Raises:
        ValueError: there are none, or the grids or units differ.
    """
    common = [name for name in variables if name in truth.variables]
    # Variables with levels first, whatever the order in the forecast.
    common.sort(key=lambda name: (variables[name].levels is None, name))
    chosen = [*names] or common
    missing = [name for name in chosen if name not in common]
    if missing or not chosen:
        what = f"{', '.join(missing)}: not in both" if missing else "none is in both"
        raise ValueError(
            f"--variables: {what}; the forecast has {', '.join(variables)}; "
            f"{truth.where} has {', '.join(truth.variables)}"
        )
    to_truth = align(*coordinates, truth.coordinates(), f"--truth: {truth.where}")
    channels: list[ScoredChannel] = []
    ours: dict[str, tuple[int, ...] | None] = {}
    theirs: dict[str, tuple[int, ...] | None] = {}
    others = [] if names else [name for name in variables if name not in common]
    numbered: list[str] = []
    notes = [f"not in the truth, and left out: {', '.join(others)}"] if others else []
    for name in chosen:
        variable, other = variables[name], truth.variables[name]
        pair = _common_levels(name, variable, other, truth.where)
        ours[name], theirs[name] = pair
        texts = variable.units or other.units, variable.long_name or other.long_name
        if variable.levels is None or pair[0] is None:
            channels.append(ScoredChannel(name, None, *texts))
            continue
        named, places = variable, pair[0]
        if _one_is_numbered(variable.levels, other.levels):
            numbered.append(name)
            if is_numbered(variable.levels):
                named, places = other, pair[1]
        assert named.levels is not None
        assert places is not None
        units = variable.level_units or other.level_units
        channels += [
            ScoredChannel(name, float(named.levels[k]), *texts, level_units=units)
            for k in places
        ]
        if len(pair[0]) < len(variable.levels):
            left = np.delete(variable.levels, pair[0])
            notes.append(
                f"{name}: the truth has no level {_listed(left)}, which is left out; "
                f"it has {_listed(other.levels)}"
            )
    if numbered:
        variable, other = variables[numbered[0]], truth.variables[numbered[0]]
        notes.append(
            f"{', '.join(numbered)}: levels {_listed(variable.levels)} are taken in "
            f"order as {_listed(other.levels)} of {truth.where}: one side only numbers "
            "them"
        )
    to_truth = in_units_of(channels, truth, to_truth)
    unknown = [
        f"{name} in {one!r} and {other!r}"
        for name in chosen
        for one, other in [(variables[name].units, truth.variables[name].units)]
        if one and other and not comparable(one, other)
    ]
    if unknown:
        notes.append(f"units that cannot be compared: {', '.join(unknown)}")
    parts = tuple(channels), ours, truth, theirs, to_truth
    return ScoreComparison(*parts, notes=tuple(notes))


def levels_in(
    channels: Sequence[ScoredChannel], other: ClimatologyFields, option: str
) -> dict[str, tuple[int, ...] | None]:
    """Positions of the levels of the scores in a climatology, by variable.

    Raises:
        ValueError: a variable or a level is missing.
    """
    by_name: dict[str, list[ScoredChannel]] = {}
    for channel in channels:
        by_name.setdefault(channel.variable, []).append(channel)
    indices: dict[str, tuple[int, ...] | None] = {}
    for name, group in by_name.items():
        if name not in other.variables:
            raise ValueError(
                f"{option}: {other.where} has no {name}; it has "
                f"{', '.join(other.variables) or 'no fields'}"
            )
        levels = [c.level for c in group if c.level is not None]
        values = np.array(levels) if levels else None
        about = {"units": group[0].units, "level_units": group[0].level_units}
        variable = GridVariable(values, **about)
        theirs = other.variables[name]
        _, indices[name] = _common_levels(name, variable, theirs, other.where)
        if levels and len(indices[name] or ()) < len(levels):
            raise ValueError(
                f"{option}: {other.where} lacks levels of {name}; the scores have "
                f"{_listed(levels)}, it has {_listed(theirs.levels)}"
            )
    return indices


def in_units_of(
    channels: Sequence[ScoredChannel],
    other: Reference | ClimatologyFields,
    places: Alignment,
) -> Alignment:
    """The alignment of a reference that also converts it to the units of the scores.

    Raises:
        ValueError: units differ in more than a factor.
    """
    factors = []
    for channel in channels:
        unit = other.variables[channel.variable].units
        factor, offset = conversion(unit, channel.units) or (1.0, 0.0)
        if differ(unit, channel.units) and (factor == 1.0 or offset):
            raise ValueError(
                f"{channel.variable} is in {channel.units!r} in the forecast and in "
                f"{unit!r} in {other.where}; convert one of them"
            )
        factors.append(factor)
    if set(factors) == {1.0}:
        return places
    factor = np.asarray(factors, np.float32)[:, None, None]
    return replace(places, factor=factor[0] if len({*factors}) == 1 else factor)


def _common_levels(
    name: str, variable: GridVariable, other: GridVariable, where: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Positions of the common levels in both, in the order of the first."""
    if variable.levels is None and other.levels is None:
        return None, None
    if variable.levels is None or other.levels is None:
        sides = ["no levels", "levels"]
        sides = sides if variable.levels is None else sides[::-1]
        raise ValueError(
            f"{name} has {sides[0]} in the forecast and {sides[1]} in {where}; leave "
            "it out with --variables"
        )
    if _one_is_numbered(variable.levels, other.levels):
        if len(variable.levels) == len(other.levels):
            places = tuple(range(len(variable.levels)))
            return places, places
        raise ValueError(
            f"{name}: one side only numbers its levels, and there are not as many on "
            f"the other: the forecast has {_listed(variable.levels)}; {where} has "
            f"{_listed(other.levels)}; name data.source.*.levels"
        )
    pair = [LevelValues(x.levels, x.level_units) for x in (variable, other)]
    pairs = common_places(pair[0], pair[1], "level", where)
    if not pairs:
        raise ValueError(
            f"{name}: no level of the forecast is in {where}: "
            f"{_listed(variable.levels)}; it has {_listed(other.levels)}"
        )
    ours, theirs = zip(*pairs, strict=True)
    return tuple(map(int, ours)), tuple(map(int, theirs))


def _one_is_numbered(ours: np.ndarray, theirs: np.ndarray | None) -> bool:
    """Whether levels are numbers from 0, as where a config names none, on one side.

    Of some levels of a forecast, all of which the other side has by number, they are on
    both.
    """
    if theirs is None or np.isin(ours, theirs).all():
        return False
    return is_numbered(ours) != is_numbered(theirs)


def is_numbered(levels: np.ndarray) -> bool:
    """Whether levels are 0, 1, 2, ..., as where nothing names them."""
    return np.array_equal(levels, np.arange(len(levels)))


def _listed(values: Sequence[float] | np.ndarray | None) -> str:
    return ", ".join(f"{value:g}" for value in ([] if values is None else values))


def attributes_of(
    where: str, comparison: ScoreComparison, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the attributes that describe the provenance of scores.

    Args:
        where: path of the forecasts.
        comparison: truth and climatology of the scores.
        provenance: provenance of the forecasts.
    """
    climatology = comparison.climatology
    return {
        "title": "scores of forecasts",
        "forecast": where,
        "truth": comparison.truth.where,
        "climatology": "none" if climatology is None else climatology.where,
        "training_dates": comparison.training_dates,
        "weights": "cos(latitude)",
        "credit_jax": version("credit-jax"),
        **{f"forecast_{k}": attribute_value(v) for k, v in provenance.items()},
    }
