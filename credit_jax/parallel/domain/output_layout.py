"""Layouts of the rows that operations read, compute and return.

An operation computes consecutive output rows on every shard (`consecutive_layout`),
from consecutive input rows (`consecutive_rows`), and `to_layout` brings the output to
the layout that its caller asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import PADDING, Field, Layout


def consecutive_layout(layout: Layout, rows: int, out: Layout | None) -> Layout:
    """Returns `out` if its rows are consecutive on every shard, else equal blocks."""
    if rows < 1:
        raise ValueError(
            f"{layout.size} rows leave {rows} output rows; the window reaches further "
            "than the rows and their padding"
        )
    if out is not None and out.size != rows:
        raise ValueError(
            f"out is a layout of {out.size} rows, but there are {rows} output rows; "
            f"give the layout of {rows} rows, or none for equal blocks"
        )
    if out is None or layout.num_shards == 1 or not _is_consecutive(out):
        return layout.to_blocks(rows)
    return out


def to_layout(field: Field, out: Layout | None) -> Field:
    """Reshards the field to layout `out`; None returns it unchanged."""
    return field if out is None or out == field.layout else reshard(field, out)


def in_row_order(field: Field) -> Field:
    """Returns the field with its rows in global order, if there is a single shard."""
    layout = field.layout
    # On several shards operations reshard to the rows that they need.
    return field if layout.num_shards > 1 else reshard(field, layout.to_blocks())


def spatial_dim(layout: Layout, num_dims: int) -> int:
    """Returns the index of the sharded dim among the spatial dims."""
    if not 1 <= layout.dim <= num_dims:
        raise ValueError(
            f"rows are split along array dim {layout.dim}; expected one of the spatial "
            f"dims 1 to {num_dims}"
        )
    return layout.dim - 1


def first_rows(layout: Layout) -> list[int | None]:
    """Returns the global row at which each shard's local rows begin."""
    # Where local rows begin with padding, it is counted back from the first real row,
    # and may be negative. None is a shard that has padding alone.
    return [
        next((row - i for i, row in enumerate(rows) if row >= 0), None)
        for rows in layout.rows
    ]


def consecutive_rows(
    layout: Layout,
    starts: Sequence[int | None],
    length: int,
    *,
    periodic: bool = False,
) -> Layout:
    """Returns the layout of `length` rows on each shard, or of padding for None."""
    size = layout.size

    def local(row: int) -> int:
        return row % size if periodic else row if 0 <= row < size else PADDING

    rows_per_shard = [
        [PADDING if start is None else local(start + i) for i in range(length)]
        for start in starts
    ]
    return layout.with_rows(rows_per_shard, size)


@lru_cache(4096)
def _is_consecutive(layout: Layout) -> bool:
    return all(
        row < 0 or row == first + i
        for first, rows in zip(first_rows(layout), layout.rows, strict=True)
        if first is not None
        for i, row in enumerate(rows)
    )
