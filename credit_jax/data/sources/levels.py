"""Selects the levels of a file by the `levels` of the config."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from credit_jax.data.sources.reader import OpenFile
from credit_jax.named_fields.coordinates import check_once

Levels: TypeAlias = Literal["nearest", "exact", "position"]

# Limit of extrapolation beyond the levels of a file, relative to the last spacing.
LEVEL_TOLERANCE = 0.5
# Relative distance of a nearest level above which the user is told.
NOTED_DISTANCE = 0.01


def level_indices(
    opened: OpenFile,
    variable: str,
    dim: str,
    requested: tuple[float, ...],
    how: Levels,
    where: str,
) -> list[int]:
    """Returns the indices of the levels at which a variable of a file is read.

    Args:
        opened: the file.
        variable: its name, for errors.
        dim: name of the level dim.
        requested: levels of the config.
        how: see `FileConventions.levels`.
        where: dotted path of the source, for errors.

    Raises:
        ValueError: a level is missing (for "nearest", it is further outside of the
            levels of the file than half their spacing), the file has one twice, or two
            levels of the config select the same level.
    """
    of = f"{opened.path}: variable {variable!r}"
    values = np.asarray(requested, dtype=np.float64)
    if how == "position":
        return level_positions(requested, opened.dataset.sizes.get(dim, 0), of, where)
    if dim not in opened.dataset.coords:
        raise ValueError(
            f"{of} has no level coordinate {dim!r} to select levels from; the file "
            f"has: {', '.join(map(str, opened.dataset.coords))}; set "
            f"{where}.level_coord, or levels: null to take all"
        )
    available = opened.dataset[dim].values.astype(np.float64)
    if not np.isfinite(available).all():
        raise ValueError(
            f"{of} has levels {_shown(available)}, expected finite numbers"
        )
    check_once(available, "level", of)
    index = pd.Index(available)
    # Which of two levels at one distance is nearest depends on the order, as in CREDIT.
    ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
    order = np.arange(available.size) if ordered else np.argsort(available)
    indices = order[index[order].get_indexer(values, method="nearest")]
    unit = str(opened.dataset[dim].attrs.get("units", ""))
    _check_distances(available, values, indices, how, of, where, unit)
    return indices.tolist()


def level_positions(
    requested: Sequence[float], count: int, of: str, where: str
) -> list[int]:
    """Returns the indices of levels that are given as positions, counted from 1.

    Args:
        requested: levels of the config.
        count: number of levels of the variable.
        of: its file and name, for errors.
        where: dotted path of the source, for errors.

    Raises:
        ValueError: one is no integer from 1 to `count`.
    """
    wrong = [
        level for level in requested if level != int(level) or not 1 <= level <= count
    ]
    if wrong:
        raise ValueError(
            f"{of} has {count} levels, got {wrong} in {where}.levels, expected "
            f"positions from 1 to {count}"
        )
    return [int(level) - 1 for level in requested]


def common_count(counts: Mapping[str, int], where: str) -> int:
    """Returns the number of levels that all 3-D variables of a source have.

    Args:
        counts: number of levels of each variable.
        where: dotted path of the source, for errors.

    Returns:
        The number; 0 without variables.

    Raises:
        ValueError: the numbers differ.
    """
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"{where}: expected the same number of levels of all 3-D variables, got "
            f"{dict(counts)}; name those to take in {where}.levels"
        )
    return max(counts.values(), default=0)


def _shown(values: np.ndarray) -> str:
    return f"{values[:20].tolist()}{' ...' if values.size > 20 else ''}"


def _check_distances(
    available: np.ndarray,
    requested: np.ndarray,
    indices: np.ndarray,
    how: Levels,
    of: str,
    where: str,
    unit: str,
) -> None:
    ordered = np.sort(available)
    gaps = np.diff(ordered) if available.size > 1 else np.full(1, np.inf)
    inside = (requested >= ordered[0]) & (requested <= ordered[-1])
    gap = np.where(requested < ordered[0], gaps[0], gaps[-1])
    limit = np.where(inside, np.inf, LEVEL_TOLERANCE * gap)
    limit = np.zeros(requested.size) if how == "exact" else limit
    distance = np.abs(available[indices] - requested)
    if (distance > limit).any():
        missing = requested[distance > limit].tolist()
        units = f" in {unit!r}" if unit else ""
        raise ValueError(
            f"{of} has no level near {missing}; it has {available.size} levels{units}: "
            f"{_shown(available)}; change {where}.levels"
        )
    if len(set(indices.tolist())) < len(indices):
        raise ValueError(
            f"{of}: {where}.levels {requested.tolist()} select a level twice (nearest: "
            f"{available[indices].tolist()}); name each level once"
        )
