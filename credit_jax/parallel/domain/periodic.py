"""CREDIT's PeriodicConv2d on sharded fields."""

from __future__ import annotations

from jaxtyping import Array, Float

from credit_jax.kernels import conv2d
from credit_jax.ops.periodic import LAT, LON, check_periodic, pad_periodic
from credit_jax.parallel.domain.conv import KernelGeometry, conv_rows
from credit_jax.parallel.domain.output_layout import (
    consecutive_layout,
    in_row_order,
    spatial_dim,
    to_layout,
)
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.reshard import HALO, reshard


def periodic_conv2d_field(
    field: Field,
    kernel: Float[Array, "kernel_h kernel_w channel_in channel_out"],
    *,
    padding: int = 1,
    out: Layout | None = None,
) -> Field:
    """`ops.periodic.periodic_conv2d` on a field: rows are reflected at the true poles.

    Args:
        field: (batch, lat, lon, channel_in), sharded along dim 1 (latitude) or dim 2
            (longitude).
        kernel: (kernel_h, kernel_w, channel_in, channel_out).
        padding: number of rows and columns to add on every side.
        out: layout of the output rows; None for equal blocks.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: as for `ops.periodic.periodic_conv2d`, or the number of rows of
            `out` is wrong.

    Differs from CREDIT: DomainParallelPeriodicConv2d has zeros beyond the poles, where
    the PeriodicConv2d that it replaces reflects rows.
    """
    layout, at = field.layout, spatial_dim(field.layout, 2)
    sizes = [layout.size if d == at else field.data.shape[1 + d] for d in range(2)]
    check_periodic(padding, *sizes)
    padded = layout.size + 2 * padding
    target = consecutive_layout(layout, padded - kernel.shape[at] + 1, out)
    if layout.num_shards == 1:
        data, dims = in_row_order(field).data, (LON, LAT)
    else:
        need = _periodic_rows(layout, target, kernel.shape[at], padding)
        data = reshard(field, need, scope=HALO).data
        dims = (LON if layout.dim == LAT else LAT,)
    for dim in dims:
        data = pad_periodic(data, padding, dim)
    return to_layout(Field(conv2d(data, kernel), target), out)


def _periodic_rows(layout: Layout, out: Layout, size: int, padding: int) -> Layout:
    """Returns the layout of the needed rows; padding is the row that it copies."""
    rows = range(-padding, layout.size + padding)
    if layout.dim == 1:
        last = layout.size - 1
        source = [last - abs(last - abs(row)) for row in rows]
    else:
        source = [row % layout.size for row in rows]
    padded = conv_rows(
        layout.to_blocks(len(source)), out, KernelGeometry(size, 1, (0, 0), 1)
    )
    needed = [[source[g] if g >= 0 else PADDING for g in need] for need in padded.rows]
    return layout.with_rows(needed, layout.size)
