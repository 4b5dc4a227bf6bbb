"""Convolutions of sharded fields, periodic and transposed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.kernels import conv2d
from credit_jax.ops import conv3d, conv_transpose
from credit_jax.ops.conv import (
    LAT,
    LON,
    check_periodic,
    check_transposed,
    explicit_padding,
    pad_periodic,
)
from credit_jax.ops.dense import add_bias
from credit_jax.ops.space_to_depth import IntPair, conv_out_size
from credit_jax.parallel.domain import output_layout
from credit_jax.parallel.rows.exchange import HALO, reshard
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.take import take_rows


@dataclass(frozen=True)
class KernelGeometry:
    """Kernel size, stride, zero padding (low, high), dilation along the sharded dim."""

    size: int
    stride: int
    padding: IntPair
    dilation: int


def conv_field(
    field: Field,
    kernel: Float[Array, "*kernel group_in channel_out"],
    *,
    stride: tuple[int, ...] | None = None,
    padding: Sequence[IntPair] | str | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    out: Layout | None = None,
) -> Field:
    """`ops.conv.conv2d` or `conv3d` on a field, with the halo that its rows need."""
    sizes = kernel.shape[:-2]
    stride, dilation = (each or (1,) * len(sizes) for each in (stride, dilation))
    layout, at = field.layout, output_layout.spatial_dim(field.layout, len(sizes))
    padding = [(0, 0)] * len(sizes) if padding is None else padding
    pads = explicit_padding(padding, sizes, stride=stride, dilation=dilation)
    geometry = KernelGeometry(sizes[at], stride[at], pads[at], dilation[at])
    rows = conv_out_size(
        layout.size, geometry.size, geometry.stride, geometry.padding, geometry.dilation
    )
    target = output_layout.consecutive_layout(layout, rows, out)
    if layout.num_shards > 1:
        # Zeros beyond the poles are among these rows.
        field = reshard(field, conv_rows(layout, target, geometry), scope=HALO)
        pads = tuple((0, 0) if i == at else pair for i, pair in enumerate(pads))
    conv: Callable[..., Array] = conv2d if len(sizes) == 2 else conv3d
    data = conv(
        output_layout.in_row_order(field).data,
        kernel,
        stride=stride,
        padding=pads,
        dilation=dilation,
        groups=groups,
    )
    return output_layout.to_layout(Field(data, target), out)


def conv2d_scales(
    field: Field,
    kernels: Sequence[Float[Array, "_ _ channel_in _"]],
    biases: Sequence[Float[Array, " _"]],
    *,
    stride: int,
    out: Layout,
    symmetric: bool = False,
) -> Field:
    """Concatenates convolutions of one stride by square kernels, ascending in size."""
    sizes = [kernel.shape[0] for kernel in kernels]
    pads = [scale_padding(size, stride, symmetric=symmetric) for size in sizes]
    shards = field.layout.num_shards
    low, largest = pads[-1][0], kernels[-1].shape[0]
    if shards > 1:
        # A single exchange of the halo of the largest kernel serves all.
        reach = KernelGeometry(largest, stride, pads[-1], 1)
        field = reshard(field, conv_rows(field.layout, out, reach), scope=HALO)
    parts = []
    for kernel, bias, pad in zip(kernels, biases, pads, strict=True):
        x, rows_pad = field.data, pad
        if shards > 1:
            # A smaller kernel begins later in the halo of the largest.
            span = (out.length - 1) * stride + kernel.shape[0]
            first = low - pad[0]
            x, rows_pad = x[:, first : first + span], (0, 0)
        y = conv2d(x, kernel, stride=(stride, stride), padding=(rows_pad, pad))
        parts.append(add_bias(y, bias))
    return Field(jnp.concatenate(parts, -1), out)


def scale_padding(kernel: int, stride: int, *, symmetric: bool = False) -> IntPair:
    """Returns the zero padding (low, high) of a convolution of `conv2d_scales`."""
    total = kernel - stride
    front = total // 2
    # If symmetric, an odd difference may drop the last output row.
    return front, front if symmetric else total - front


def conv_rows(layout: Layout, out: Layout, geometry: KernelGeometry) -> Layout:
    """Returns the layout of the input rows that each shard needs for its output."""
    # With zero padding as padding rows, so that the local convolution is VALID.
    span = (
        (out.length - 1) * geometry.stride + (geometry.size - 1) * geometry.dilation + 1
    )
    starts = [
        None if row is None else row * geometry.stride - geometry.padding[0]
        for row in output_layout.first_rows(out)
    ]
    return output_layout.consecutive_rows(layout, starts, span)


def periodic_conv2d_field(
    field: Field,
    kernel: Float[Array, "kernel_h kernel_w channel_in channel_out"],
    *,
    padding: int = 1,  # on every side; (kernel - 1) / 2 keeps the size
    out: Layout | None = None,
) -> Field:
    """Pads longitude periodically and latitude by reflection, then convolves."""
    layout, at = field.layout, output_layout.spatial_dim(field.layout, 2)
    sizes = [layout.size if d == at else field.data.shape[1 + d] for d in range(2)]
    check_periodic(padding, *sizes)
    padded = layout.size + 2 * padding
    target = output_layout.consecutive_layout(
        layout, padded - kernel.shape[at] + 1, out
    )
    if layout.num_shards == 1:
        data, dims = output_layout.in_row_order(field).data, (LON, LAT)
    else:
        # Differs from CREDIT: DomainParallelPeriodicConv2d has zeros beyond the poles,
        # where the PeriodicConv2d that it replaces reflects rows.
        need = _periodic_rows(layout, target, kernel.shape[at], padding)
        # These have the rows beyond the ends of the sharded dim already.
        data = reshard(field, need, scope=HALO).data
        dims = (LON if layout.dim == LAT else LAT,)
    # The two paddings commute, so the corners are well defined.
    for dim in dims:
        data = pad_periodic(data, padding, dim)
    return output_layout.to_layout(Field(conv2d(data, kernel), target), out)


def _periodic_rows(layout: Layout, out: Layout, size: int, padding: int) -> Layout:
    """Returns the layout of the needed rows; padding is the row that it copies."""
    rows = range(-padding, layout.size + padding)
    if layout.dim == 1:
        # Reflected at the first and at the last row, which are not repeated.
        last = layout.size - 1
        source = [last - abs(last - abs(row)) for row in rows]
    else:
        source = [row % layout.size for row in rows]
    padded = conv_rows(
        layout.to_blocks(len(source)), out, KernelGeometry(size, 1, (0, 0), 1)
    )
    needed = [[source[g] if g >= 0 else PADDING for g in need] for need in padded.rows]
    return layout.with_rows(needed, layout.size)


def conv_transpose_field(
    field: Field,
    kernel: Float[Array, "*kernel channel_in group_out"],
    *,
    stride: tuple[int, ...] | None = None,
    padding: Sequence[IntPair] | None = None,
    output_padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    out: Layout | None = None,
) -> Field:
    """`ops.conv.conv_transpose` on a field, with the rows that output depends on."""
    sizes = kernel.shape[:-2]
    layout, at = field.layout, output_layout.spatial_dim(field.layout, len(sizes))
    stride, dilation = (each or (1,) * len(sizes) for each in (stride, dilation))
    ends = list(padding or [(0, 0)] * len(sizes))
    after, phase = list(output_padding or (0,) * len(sizes)), None
    rows = check_transposed(
        layout.size,
        sizes[at],
        stride=stride[at],
        padding=ends[at],
        output_padding=after[at],
        dilation=dilation[at],
    )
    target = output_layout.consecutive_layout(layout, rows, out)
    if layout.num_shards > 1:
        extent, step = dilation[at] * (sizes[at] - 1) + 1, stride[at]
        need, phase, leading = transposed_rows(
            layout, target, extent=extent, stride=step, low=ends[at][0]
        )
        field = reshard(field, need, scope=HALO)
        ends[at] = (leading * step, max(extent - step, 0))
        after[at] = max(step - extent, 0)
    data = conv_transpose(
        output_layout.in_row_order(field).data,
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
    return output_layout.to_layout(Field(data, target), out)


def transposed_rows(
    layout: Layout, out: Layout, *, extent: int, stride: int, low: int
) -> tuple[Layout, np.ndarray, int]:
    """Returns the input rows of each shard's output rows, and where output begins."""
    # Output row o depends on input row i through tap o + low - i * stride, if that is
    # between 0 and extent - 1, which is dilation * (kernel - 1) + 1: on row
    # floor((o + low) / stride) and on rows before it, of which `leading` are needed.
    firsts = output_layout.first_rows(out)
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
    return output_layout.consecutive_rows(layout, needed, length), phase, leading
