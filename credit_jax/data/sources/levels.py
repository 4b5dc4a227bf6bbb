"""Selects the levels of a file by the `levels` of the config."""

from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.sources.reader import OpenFile

Levels: TypeAlias = Literal["nearest", "exact", "position"]

# Limit of extrapolation beyond the levels of a file, relative to the last spacing.
LEVEL_TOLERANCE = 0.5
# Relative difference up to which two files have the same level: rounding of float32.
SAME_LEVEL = 1e-5


def level_indices(
    opened: OpenFile, dim: str, wanted: tuple[float, ...], how: Levels, where: str
) -> list[int]:
    """Returns the indices of some levels in a file.

    Args:
        opened: the file.
        dim: name of the level dim.
        wanted: levels of the config.
        how: see `Layout.levels`.
        where: dotted path of the source, for errors.

    Raises:
        ValueError: a level is missing (for "nearest", it is further outside of the
            levels of the file than half their spacing), or two levels of the config
            select the same level.
    """
    values = np.asarray(wanted, dtype=np.float64)
    if how == "position":
        return _positions(values, opened, dim, where)
    if dim not in opened.dataset.coords:
        raise ValueError(
            f"{opened.path}: no level coordinate {dim!r} to select levels from; it "
            f"has: {', '.join(map(str, opened.dataset.coords))}. Set "
            f"{where}.level_coord, or levels: null to take all"
        )
    there = opened.dataset[dim].values.astype(np.float64)
    ordered = pd.Index(there).is_monotonic_increasing
    if not (ordered or pd.Index(there).is_monotonic_decreasing):
        raise ValueError(
            f"{opened.path}: the levels {there[:20].tolist()} are neither increasing "
            "nor decreasing; sort them"
        )
    indices = pd.Index(there).get_indexer(values, method="nearest")
    unit = str(opened.dataset[dim].attrs.get("units", ""))
    _check_distances(there, values, indices, how, opened.path, where, unit)
    return indices.tolist()


def check_same_levels(
    opened: OpenFile,
    dim: str,
    indices: list[int] | None,
    variable: str,
    first: dict[str, tuple[str, Float[np.ndarray, " level"]]],
) -> None:
    """Checks that a variable is read on the same levels from all files.

    Args:
        opened: the file; one whose dim has no coordinate of numbers is not compared.
        dim: name of the level dim.
        indices: of the levels that are read; None for all.
        variable: its name.
        first: path and levels of the first file of each variable; receives those of
            this file if it is the first.

    Raises:
        ValueError: the first file has other levels.
    """
    if dim not in opened.dataset.coords or opened.dataset[dim].dtype.kind not in "iuf":
        return
    values = opened.dataset[dim].values.astype(np.float64)
    values = values if indices is None else values[indices]
    path, expected = first.setdefault(variable, (opened.path, values))
    same = values.shape == expected.shape
    if same and np.allclose(values, expected, rtol=SAME_LEVEL, atol=0):
        return
    raise ValueError(
        f"{opened.path}: variable {variable!r} would be read on the levels "
        f"{_shown(values)}, but from {path} on {_shown(expected)}; bring all files to "
        "the same levels, or name levels that all have"
    )


def _shown(values: np.ndarray) -> str:
    return f"{values[:20].tolist()}{' ...' if values.size > 20 else ''}"


def _positions(values: np.ndarray, opened: OpenFile, dim: str, where: str) -> list[int]:
    count = opened.dataset.sizes.get(dim, 0)
    wrong = (values < 1) | (values > count) | (values != np.round(values))
    if wrong.any():
        raise ValueError(
            f"{opened.path}: levels {values[wrong].tolist()} of {where}.levels are not "
            f"positions of 1 to {count} in the dim {dim!r}"
        )
    return [int(value) - 1 for value in values]


def _check_distances(
    there: np.ndarray,
    wanted: np.ndarray,
    indices: np.ndarray,
    how: Levels,
    path: str,
    where: str,
    unit: str,
) -> None:
    ordered = np.sort(there)
    gaps = np.diff(ordered) if there.size > 1 else np.full(1, np.inf)
    inside = (wanted >= ordered[0]) & (wanted <= ordered[-1])
    gap = np.where(wanted < ordered[0], gaps[0], gaps[-1])
    limit = np.where(inside, np.inf, LEVEL_TOLERANCE * gap)
    limit = np.zeros(wanted.size) if how == "exact" else limit
    distance = np.abs(there[indices] - wanted)
    if (distance > limit).any():
        lost = wanted[distance > limit].tolist()
        units = f" in {unit!r}" if unit else ""
        raise ValueError(
            f"{path}: no level near {lost}; it has {there.size} levels{units}: "
            f"{_shown(there)}. Change {where}.levels"
        )
    if len(set(indices.tolist())) < len(indices):
        raise ValueError(
            f"{path}: levels {wanted.tolist()} of {where} select a level "
            f"twice (nearest: {there[indices].tolist()})"
        )
