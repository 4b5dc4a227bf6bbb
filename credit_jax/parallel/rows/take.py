"""Selection of local rows by slices if possible, else by a gather.

A gather is slow. Nearly every index of a layout is a slice, a reversed slice, a few of
these, or a matrix transpose. These forms are recognized at trace time; all others are
gathers. The transpose of a gather is a sum of gathers, not a scatter, whose additions
XLA sorts on GPUs to make them deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.ops.custom_vjp import linear
from credit_jax.ops.space_to_depth import pad_dim
from credit_jax.parallel.collectives import axis_index

MAX_PIECES = 8
# The most rows that a gradient gathers for each row that was taken, or is there.
_MAX_WASTE = 4


def take_rows(x: Array, index: np.ndarray, axis: str | None, dim: int) -> Array:
    """Returns local rows `index[shard]` of (shards, rows)."""
    # An index of -1 gives any row, on which nothing may depend.
    taken = np.stack([_filled(rows) for rows in np.asarray(index)])
    starts, size = taken[:, 0], x.shape[dim]
    are_slices = (taken == starts[:, None] + np.arange(taken.shape[1])).all()
    if not are_slices:
        taken = np.minimum(taken, size - 1)
    elif taken.max() >= size:
        # `dynamic_slice` would move a slice that ends beyond the array back into it.
        x = pad_dim(x, dim, (0, int(taken.max()) + 1 - size))
    if (taken == taken[:1]).all():
        return take_static(x, taken[0].tolist(), dim)
    if are_slices:
        start = jnp.asarray(starts, jnp.int32)[axis_index(axis)]
        return lax.dynamic_slice_in_dim(x, start, taken.shape[1], dim)
    return _gather(x, taken, index >= 0, axis, dim)


def take_static(x: Array, index: Sequence[int], dim: int) -> Array:
    """Returns rows `index` along `dim`, the same on all shards; -1 gives zeros."""
    if list(index) == list(range(x.shape[dim])):
        return x
    columns = _as_transpose(index, x.shape[dim])
    if columns:
        shape = x.shape
        matrix = x.reshape(*shape[:dim], -1, columns, *shape[dim + 1 :])
        return jnp.swapaxes(matrix, dim, dim + 1).reshape(shape)
    runs = _runs(index)
    if len(runs) > MAX_PIECES:
        rows = np.asarray(index)[None]
        return keep_rows(_gather(x, rows, rows >= 0, None, dim), rows >= 0, None, dim)
    ranges = [run for run in runs if run[0] >= 0]
    if len(ranges) == 1 and ranges[0][1] == 1 and len(runs) > 1:
        # One ascending slice between zero rows.
        first, _, count = ranges[0]
        low, high = (n if start < 0 else 0 for start, _, n in (runs[0], runs[-1]))
        rows = lax.slice_in_dim(x, first, first + count, axis=dim)
        return pad_dim(rows, dim, (low, high))
    pieces = [_piece(x, start, step, count, dim) for start, step, count in runs]
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, dim)


def keep_rows(x: Array, valid: np.ndarray | None, axis: str | None, dim: int) -> Array:
    """Replaces the rows that are not `valid` (shards, rows) by zeros."""
    if valid is None or valid.all():
        return x
    shape = [1] * x.ndim
    shape[dim] = valid.shape[1]
    local = jnp.asarray(valid)[axis_index(axis)].reshape(shape)
    return jnp.where(local, x, jnp.zeros((), x.dtype))


def _runs(index: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns maximal (start, step, count) runs of step +1, -1 or, for zero rows, 0."""
    runs: list[list[int]] = []
    previous = None
    for row in index:
        step = None
        if previous is not None and max(previous, row) < 0:
            step = 0
        elif previous is not None and min(previous, row) >= 0:
            step = row - previous if abs(row - previous) == 1 else None
        if step is None:
            runs.append([row, 0 if row < 0 else 1, 1])
        elif runs[-1][2] == 1 or runs[-1][1] == step:
            runs[-1][1] = step
            runs[-1][2] += 1
        else:
            runs.append([row, 0 if row < 0 else 1, 1])
        previous = row
    return [(start, step, count) for start, step, count in runs]


def _piece(x: Array, start: int, step: int, count: int, dim: int) -> Array:
    if start < 0:
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        return jnp.zeros_like(x, shape=shape)
    if step == 1:
        return lax.slice_in_dim(x, start, start + count, axis=dim)
    low = start - count + 1
    return lax.rev(lax.slice_in_dim(x, low, start + 1, axis=dim), (dim,))


def _filled(rows: np.ndarray) -> np.ndarray:
    """Replaces -1 in an index: so that it is a slice if possible, else by row 0."""
    # The slice may go past the last row.
    real = np.flatnonzero(rows >= 0)
    if len(real) == len(rows):
        return rows
    start = rows[real[0]] - real[0] if len(real) else 0
    slice_of = start + np.arange(len(rows))
    fits = start >= 0 and (rows[real] == slice_of[real]).all()
    return slice_of if fits else np.maximum(rows, 0)


def _gather(
    x: Array, index: np.ndarray, used: np.ndarray, axis: str | None, dim: int
) -> Array:
    """Returns rows `index[shard]`; nothing may depend on those that are not `used`."""
    size = x.shape[dim]
    # index, used: (shards, rows).
    order = np.argsort(np.where(used, index, size), 1, kind="stable")
    counts = [
        np.bincount(rows[real], minlength=size)
        for rows, real in zip(index, used, strict=True)
    ]
    inverse = np.full((max(1, np.max(counts)), len(index), size), -1, np.int32)
    for shard, count in enumerate(counts):
        rows = np.repeat(np.arange(size), count)
        time = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        inverse[time, shard, rows] = order[shard, : len(rows)]
    # A row that is taken many times makes as many gathers of all rows.
    if inverse.size > _MAX_WASTE * max(index.size, inverse[0].size):
        return _rows_at(x, index, axis, dim)

    def take(x: Array) -> Array:
        return _rows_at(x, index, axis, dim)

    def transpose(cotangent: Array) -> Array:
        parts = [
            keep_rows(
                _rows_at(cotangent, np.maximum(positions, 0), axis, dim),
                positions >= 0,
                axis,
                dim,
            )
            for positions in inverse
        ]
        return reduce(add, parts)

    return linear(take, transpose, x, axis)


def _rows_at(x: Array, index: np.ndarray, axis: str | None, dim: int) -> Array:
    shard = axis_index(axis) if len(index) > 1 else 0
    rows = jnp.asarray(index, jnp.int32)[shard]
    origin = (slice(None),) * dim + (rows,)
    return x.at[origin].get(mode="promise_in_bounds")


def _as_transpose(index: Sequence[int], size: int) -> int | None:
    """Returns the number of columns if the index transposes a row-major matrix."""
    if len(index) != size or size < 4 or index[0] != 0:
        return None
    columns = index[1]
    if columns < 2 or size % columns:
        return None
    by_columns = np.arange(size).reshape(-1, columns).T.reshape(-1)
    return columns if (np.asarray(index) == by_columns).all() else None
