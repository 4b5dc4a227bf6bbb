"""Selects the levels of a file by the `levels` of the config."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from credit_jax.named_fields.coordinates import LevelValues, check_once, readings

Levels: TypeAlias = Literal["nearest", "exact", "position"]

# Limit of extrapolation beyond the levels of a file, relative to the last spacing.
LEVEL_TOLERANCE = 0.5
# Relative distance of a nearest level above which the user is told.
NOTED_DISTANCE = 0.01


def as_listed(levels: LevelValues, listed: Sequence[float]) -> tuple[LevelValues, bool]:
    """Levels in the unit in which a config lists them, or hPa; and whether both fit."""
    factor = (*readings(LevelValues(listed, "hPa"), levels), 1.0)[0]
    if factor == 1.0:
        return levels, False
    converted = LevelValues(np.multiply(levels, factor), "hPa", levels.positive)
    fits = [
        bool((np.abs(np.subtract.outer(x, listed)).min(0) <= limit).all())
        for x in (levels, converted)
        for limit in (NOTED_DISTANCE * np.abs(listed),)
    ]
    return converted if fits == [False, True] else levels, all(fits)


def level_indices(
    levels: LevelValues,
    requested: tuple[float, ...],
    how: Levels,
    of: str,
    origin: str,
) -> list[int]:
    """Returns the indices of the levels at which a variable of a file is read."""
    values, available = (np.asarray(x, np.float64) for x in (requested, levels))
    text = f"{available[:20].tolist()}{' ...' if available.size > 20 else ''}"
    if not np.isfinite(available).all():
        raise ValueError(f"{of} has levels {text}, expected finite numbers")
    check_once(available, "level", of)
    index = pd.Index(available)
    # Which of two levels at one distance is nearest depends on the order, as in CREDIT.
    is_ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
    order = np.arange(available.size) if is_ordered else np.argsort(available)
    indices = order[index[order].get_indexer(values, method="nearest")]
    ordered = np.sort(available)
    gaps = np.diff(ordered) if available.size > 1 else np.full(1, np.inf)
    inside = (values >= ordered[0]) & (values <= ordered[-1])
    gap = np.where(values < ordered[0], gaps[0], gaps[-1])
    # For "nearest", half the spacing of the levels outside of them.
    limit = np.where(inside, np.inf, LEVEL_TOLERANCE * gap)
    limit = np.zeros(values.size) if how == "exact" else limit
    distance = np.abs(available[indices] - values)
    if (distance > limit).any():
        units = f" in {levels.unit!r}" if levels.unit else ""
        raise ValueError(
            f"{of} has no level near {values[distance > limit].tolist()}; it has "
            f"{available.size} levels{units}: {text}; change {origin}.levels"
        )
    if len({*indices.tolist()}) < len(indices):
        raise ValueError(
            f"{of}: {origin}.levels {values.tolist()} select a level twice "
            f"(nearest: {available[indices].tolist()}); name each level once"
        )
    return indices.tolist()


def level_positions(
    requested: Sequence[float], count: int, of: str, origin: str
) -> list[int]:
    """Returns the indices of levels that are given as positions, counted from 1."""
    wrong = [
        level for level in requested if level != int(level) or not 1 <= level <= count
    ]
    if wrong:
        raise ValueError(
            f"{of} has {count} levels, got {wrong} in {origin}.levels, expected "
            f"positions from 1 to {count}"
        )
    return [int(level) - 1 for level in requested]


def common_count(counts: Mapping[str, int], origin: str) -> int:
    """Returns the number of levels that all 3-D variables of a source have."""
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"{origin}: expected the same number of levels of all 3-D variables, got "
            f"{dict(counts)}; name those to take in {origin}.levels"
        )
    return max(counts.values(), default=0)
