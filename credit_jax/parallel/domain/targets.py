"""Where the output rows of an operation with a row plan lie."""

from __future__ import annotations

from functools import lru_cache

from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.reshard import reshard


def on_one_row_range(layout: Layout, rows: int, out: Layout | None) -> Layout:
    """The layout to compute output rows on, one ascending stretch a shard.

    Args:
        layout: of the input: gives shards, axis and dim.
        rows: number of output rows.
        out: layout that is wanted in the end.

    Returns:
        `out` where each shard's rows ascend one by one; else equal blocks, from which
        `deliver` moves them.

    Raises:
        ValueError: there is no output row, or `out` is of another number of rows.
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
    if out is None or layout.num_shards == 1 or not _ascends(out):
        return layout.to_blocks(rows)
    return out


def deliver(field: Field, out: Layout | None) -> Field:
    """The field on layout `out`; as it is where none is asked for."""
    return field if out is None or out == field.layout else reshard(field, out)


def whole_rows(field: Field) -> Field:
    """On one shard the rows in order; on several, where they come from is no matter."""
    layout = field.layout
    return field if layout.num_shards > 1 else reshard(field, layout.to_blocks())


def spatial_dim(layout: Layout, num_dims: int) -> int:
    """Which of the spatial dims (from 0) is split.

    Raises:
        ValueError: the split dim is no spatial dim.
    """
    if not 1 <= layout.dim <= num_dims:
        raise ValueError(
            f"rows are split along array dim {layout.dim}; expected one of the spatial "
            f"dims 1 to {num_dims}"
        )
    return layout.dim - 1


@lru_cache(4096)
def _ascends(layout: Layout) -> bool:
    for rows in layout.rows:
        first = next((row - i for i, row in enumerate(rows) if row >= 0), None)
        if first is None:
            continue
        if any(row >= 0 and row != first + i for i, row in enumerate(rows)):
            return False
    return True
