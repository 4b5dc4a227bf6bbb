"""Windows of attention on sharded fields: neighboring (short) and dilated (long).

Fields may be sharded along latitude (dim 1) or longitude (dim 2); "rows" are those of
the sharded dim. A short window is w x w neighboring points. A long window is w x w
points over the whole globe, H / w rows and W / w columns apart; its rows j, j + H/w,
j + 2H/w, ... are group j. Each shard has complete short windows, or complete groups. In
a layout of strips (`domain.strips`), it has the strips of each window, or of each group
of windows, in row-major order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.ops.space_to_depth import IntPair
from credit_jax.ops.window_attention import WindowDim, WindowGrid
from credit_jax.parallel.rows.layout import Field, Layout

Kind = Literal["short", "long"]


def window_layout(layout: Layout, size: int, window: int) -> Layout:
    """Returns complete short windows: ceil(size / window / n) of them on each shard."""
    length = -(-(size // window) // layout.num_shards) * window
    ends = [min(d * length, size) for d in range(layout.num_shards + 1)]
    return layout.with_rows([range(*pair) for pair in pairwise(ends)], size)


def group_layout(layout: Layout, size: int, window: int) -> Layout:
    """Returns the layout of complete long windows, group by group."""
    # A single shard has its rows in global order instead.
    if layout.num_shards == 1:
        return layout.to_blocks(size)
    groups = size // window
    per_shard = -(-groups // layout.num_shards)
    rows_per_shard = [
        [
            member * groups + group
            for group in range(d * per_shard, min((d + 1) * per_shard, groups))
            for member in range(window)
        ]
        for d in range(layout.num_shards)
    ]
    return layout.with_rows(rows_per_shard, size)


def partition(
    field: Field, kind: Kind, window: int | IntPair
) -> Float[Array, "batch windows tokens channel"]:
    """Partitions a field into local windows; tokens are row-major."""
    # On the layout of `window_layout` for short or of `group_layout` for long windows,
    # or of `strips.Windows.layouts`.
    batch, _, _, channels = field.data.shape
    height, width = _sides(window)
    if field.layout.strips > 1:
        x = field.data.reshape(
            batch, *_in_strips(field, kind, height * width), channels
        )
        return x.swapaxes(2, 3).reshape(batch, -1, height * width, channels)
    order = _order(field.layout, kind)
    x = field.data.reshape(batch, *_split(field, kind, window), channels)
    x = x.transpose(0, *order, 5)
    return x.reshape(batch, -1, height * width, channels)


def merge(
    windows: Float[Array, "batch windows tokens channel"],
    field: Field,
    kind: Kind,
    window: int | IntPair,
) -> Field:
    """Restores the field from its windows: the inverse of `partition`."""
    batch, channels = windows.shape[0], windows.shape[-1]
    if field.layout.strips > 1:
        groups, tokens, width = _in_strips(field, kind, windows.shape[2])
        x = windows.reshape(batch, groups, width, tokens, channels).swapaxes(2, 3)
        return field.like(x.reshape(*field.data.shape[:3], channels))
    shape = _split(field, kind, window)
    order = _order(field.layout, kind)
    x = windows.reshape(batch, *(shape[d - 1] for d in order), channels)
    inverse = [order.index(d) + 1 for d in (1, 2, 3, 4)]
    x = x.transpose(0, *inverse, 5)
    return field.like(x.reshape(batch, *field.data.shape[1:3], channels))


def window_grid(field: Field, kind: Kind, window: int | IntPair) -> WindowGrid:
    """Returns the positions in the local field of the tokens of `partition`."""
    if field.layout.strips > 1:
        height, width = _sides(window)
        groups, tokens, apart = _in_strips(field, kind, height * width)
        rows = WindowDim(groups, tokens, window_step=tokens, token_step=1)
        columns = WindowDim(apart, 1, window_step=1, token_step=1)
        return WindowGrid(len(field.data), rows, columns)
    shape, order = _split(field, kind, window), _order(field.layout, kind)

    def dim(windows: int, tokens: int) -> WindowDim:
        num, length = shape[windows - 1], shape[tokens - 1]
        if windows < tokens:
            return WindowDim(num, length, window_step=length, token_step=1)
        return WindowDim(num, length, window_step=1, token_step=num)

    row, column, token_row, token_column = order
    return WindowGrid(len(field.data), dim(row, token_row), dim(column, token_column))


def window_numbers(
    field: Field, kind: Kind, window: int | IntPair
) -> tuple[Int[Array, " windows"], Int[Array, " windows"]]:
    """Returns the global (row, column) of windows for each local one of `partition`."""
    # The values for padding windows are meaningless.
    height, width = _sides(window)
    layout, points = field.layout, field.data.shape[2]
    rows, columns = layout.global_rows(), layout.columns(points)
    if layout.strips > 1:
        groups, _, apart = _in_strips(field, kind, height * width)
        rows = rows.reshape(groups, -1)[:, 0].repeat(apart)
        columns = columns.reshape(groups, -1)[:, :apart].reshape(-1)
        if kind == "short":
            return rows // height, columns // width
        return rows, columns
    shape, order = _split(field, kind, window), _order(layout, kind)
    num_rows, num_columns = shape[order[0] - 1], shape[order[1] - 1]
    first = rows.reshape(shape[:2])
    first = first[:, 0] if order[0] == 1 else first[0]
    first = first // height if kind == "short" else first
    return first.repeat(num_columns), jnp.tile(jnp.arange(num_columns), num_rows)


def _in_strips(field: Field, kind: Kind, tokens: int) -> tuple[int, int, int]:
    """Returns the sizes (groups, tokens, windows) of the points of a strip field."""
    strips, points = field.data.shape[1:3]
    # A group of strips is one short window, whose tokens are all points of the strips,
    # or as many long windows as a strip has points, with one token in each strip.
    if kind == "short":
        return strips * points // tokens, tokens, 1
    return strips // tokens, tokens, points


def _sides(window: int | IntPair) -> IntPair:
    """Returns (rows, columns) of a window."""
    return (window, window) if isinstance(window, int) else window


def _split(
    field: Field, kind: Kind, window: int | IntPair
) -> tuple[int, int, int, int]:
    """Returns sizes of rows and columns, each as two dims in the order of the array."""
    rows, columns = field.data.shape[1:3]
    height, width = _sides(window)
    row, column, _, _ = _order(field.layout, kind)
    high = (rows // height, height) if row == 1 else (height, rows // height)
    low = (columns // width, width) if column == 3 else (width, columns // width)
    return *high, *low


def _order(layout: Layout, kind: Kind) -> tuple[int, int, int, int]:
    """Returns the dims of `_split` of window row and column, token row and column."""
    # For long windows, a sharded dim is in the order of groups (token within window),
    # and a dim that is not sharded in global order (window within token).
    grouped = None if layout.is_whole else layout.dim
    row = 1 if kind == "short" or grouped == 1 else 2
    column = 3 if kind == "short" or grouped == 2 else 4
    return row, column, 3 - row, 7 - column
