"""Transposed convolution of sharded fields."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float

from credit_jax.ops import conv_transpose2d, conv_transpose3d
from credit_jax.ops.conv import NO_PADDING, NO_PADDING_3D, Padding, Padding3d, Triple
from credit_jax.ops.conv_transpose import check_transposed
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.output_layout import (
    consecutive_layout,
    consecutive_rows,
    first_rows,
    in_row_order,
    spatial_dim,
    to_layout,
)
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.reshard import HALO, reshard
from credit_jax.parallel.rows.take import take_rows


def conv_transpose2d_field(
    field: Field,
    kernel: Float[Array, "kernel_h kernel_w channel_in group_out"],
    *,
    stride: IntPair = (1, 1),
    padding: Padding = NO_PADDING,
    output_padding: IntPair = (0, 0),
    dilation: IntPair = (1, 1),
    groups: int = 1,
    out: Layout | None = None,
) -> Field:
    """`ops.conv_transpose.conv_transpose2d` on a field.

    Each shard receives the input rows that its output rows depend on. If the kernel
    size equals the stride, and blocks of input and output rows match, no row moves.

    Args:
        field: (batch, lat, lon, channel_in), sharded along dim 1 or 2.
        kernel: (kernel_h, kernel_w, channel_in, channel_out / groups).
        stride, padding, output_padding, dilation, groups: as for
            `ops.conv_transpose.conv_transpose2d`.
        out: layout of the output rows; None for equal blocks.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: as for `ops.conv_transpose.conv_transpose2d`, or the number of rows
            of `out` is wrong.
    """
    geometry = stride, padding, output_padding, dilation, groups
    return _conv_transpose_field(conv_transpose2d, field, kernel, *geometry, out)


def conv_transpose3d_field(
    field: Field,
    kernel: Float[Array, "kernel_d kernel_h kernel_w channel_in group_out"],
    *,
    stride: Triple = (1, 1, 1),
    padding: Padding3d = NO_PADDING_3D,
    output_padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    groups: int = 1,
    out: Layout | None = None,
) -> Field:
    """`ops.conv_transpose.conv_transpose3d` on a field.

    Args:
        field: (batch, depth, lat, lon, channel_in), sharded along dim 1, 2 or 3.
        kernel: (kernel_d, kernel_h, kernel_w, channel_in, channel_out / groups).
        stride, padding, output_padding, dilation, groups, out: as for
            `conv_transpose2d_field`.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: as for `conv_transpose2d_field`.
    """
    geometry = stride, padding, output_padding, dilation, groups
    return _conv_transpose_field(conv_transpose3d, field, kernel, *geometry, out)


def _conv_transpose_field(
    op: Callable[..., Array],
    field: Field,
    kernel: Array,
    stride: tuple[int, ...],
    padding: tuple[IntPair, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    out: Layout | None,
) -> Field:
    layout, at = field.layout, spatial_dim(field.layout, len(stride))
    rows = check_transposed(
        layout.size,
        kernel.shape[at],
        stride=stride[at],
        padding=padding[at],
        output_padding=output_padding[at],
        dilation=dilation[at],
    )
    target = consecutive_layout(layout, rows, out)
    ends, after, phase = list(padding), list(output_padding), None
    if layout.num_shards > 1:
        extent, step = dilation[at] * (kernel.shape[at] - 1) + 1, stride[at]
        need, phase, leading = transposed_rows(
            layout, target, extent=extent, stride=step, low=padding[at][0]
        )
        field = reshard(field, need, scope=HALO)
        ends[at] = (leading * step, max(extent - step, 0))
        after[at] = max(step - extent, 0)
    data = op(
        in_row_order(field).data,
        kernel,
        stride=stride,
        padding=tuple(ends),
        output_padding=tuple(after),
        dilation=dilation,
        groups=groups,
    )
    if phase is not None:
        # Shards compute whole strides of output rows, which begin before their rows.
        index = phase[:, None] + np.arange(target.length)
        data = take_rows(data, index, target.axis, target.dim)
    return to_layout(Field(data, target), out)


def transposed_rows(
    layout: Layout, out: Layout, *, extent: int, stride: int, low: int
) -> tuple[Layout, np.ndarray, int]:
    """Returns the layout of the input rows that each shard's output rows depend on.

    Output row o depends on input row i through tap o + low - i * stride, if that is
    between 0 and extent - 1: on row floor((o + low) / stride) and on rows before it.

    Args:
        layout: layout of the input.
        out: layout of the output, with consecutive rows on every shard.
        extent: dilation * (kernel - 1) + 1 along the sharded dim.
        stride: along the sharded dim.
        low: output rows that are removed at the start.

    Returns:
        layout: layout of the needed rows.
        phase: (shard,), (first output row + low) mod stride.
        before: number of needed rows before row floor((first output row + low) /
            stride).
    """
    firsts = first_rows(out)
    # A shard without rows computes as one that has some, from padding.
    idle = next(first for first in firsts if first is not None)
    starts = np.asarray([idle if first is None else first for first in firsts]) + low
    phase = starts % stride
    leading = max((extent - 1 - int(phase.min())) // stride, 0)
    length = leading + 1 + (int(phase.max()) + out.length - 1) // stride
    needed = [
        None if first is None else start - leading
        for first, start in zip(firsts, (starts // stride).tolist(), strict=True)
    ]
    return consecutive_rows(layout, needed, length), phase, leading
