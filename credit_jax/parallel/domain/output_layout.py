"""Layouts on which operations compute their output rows, and on which they return."""

from __future__ import annotations

from functools import lru_cache

from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.reshard import reshard


def consecutive_layout(layout: Layout, rows: int, out: Layout | None) -> Layout:
    """Returns a layout for computing output rows, with consecutive rows on every shard.

    Args:
        layout: layout of the input; gives shards, axis and dim.
        rows: number of output rows.
        out: layout of the result; None for equal blocks.

    Returns:
        `out` if its rows are consecutive on every shard; otherwise equal blocks, from
        which `to_layout` reshards to `out`.

    Raises:
        ValueError: `rows` is below 1, or `out` has another number of rows.
    """
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
    """Returns the field with its rows in global order, if there is a single shard.

    On several shards it is unchanged: operations reshard to the rows that they need.
    """
    layout = field.layout
    return field if layout.num_shards > 1 else reshard(field, layout.to_blocks())


def spatial_dim(layout: Layout, num_dims: int) -> int:
    """Returns the index of the sharded dim among the spatial dims.

    Args:
        layout: layout of a field.
        num_dims: number of spatial dims of the field.

    Raises:
        ValueError: the sharded dim is not a spatial dim.
    """
    if not 1 <= layout.dim <= num_dims:
        raise ValueError(
            f"rows are split along array dim {layout.dim}; expected one of the spatial "
            f"dims 1 to {num_dims}"
        )
    return layout.dim - 1


@lru_cache(4096)
def _is_consecutive(layout: Layout) -> bool:
    for rows in layout.rows:
        first = next((row - i for i, row in enumerate(rows) if row >= 0), None)
        if first is None:
            continue
        if any(row >= 0 and row != first + i for i, row in enumerate(rows)):
            return False
    return True
