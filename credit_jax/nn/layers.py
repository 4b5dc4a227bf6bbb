"""Layers: modules with the parameters of array and field operations.

Gates multiply each channel or point of a field by a factor in (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from credit_jax.kernels import dense, layer_norm, layer_norm_and_skip
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import Parameter, batch_stat, of_call, parameter
from credit_jax.ops import RunningStatistics
from credit_jax.ops.activations import gelu, neighbor_taps
from credit_jax.ops.conv import Padding
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.ops.dense import add_bias, float8_dense
from credit_jax.ops.random import drop, keep_mask
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.collectives import axis_index, psum
from credit_jax.parallel.compiler import FEED_FORWARD, NORM
from credit_jax.parallel.domain import attention
from credit_jax.parallel.domain.conv import conv_field
from credit_jax.parallel.domain.norm import batch_norm_field, group_norm
from credit_jax.parallel.domain.windows import Kind, window_numbers
from credit_jax.parallel.params.spec import Initializer, constant, torch_uniform
from credit_jax.parallel.rows.layout import Field, Layout

Channels = Float[Array, "*batch channel"]


def drop_units(
    x: Float[Array, "batch rows lon unit"],
    field: Field,
    context: Context,
    rate: float,
    units: int,  # global number; `x` has fewer if they are sharded over tp
) -> Float[Array, "batch rows lon unit"]:
    """Dropout with a mask by global sample, row, column and unit."""
    if context.key is None or rate == 0.0:
        return x
    batch, _, columns, local = x.shape
    sample = context.samples(batch)
    high = sample[:, None] * field.layout.size + field.layout.global_rows()[None]
    unit = jnp.arange(local)
    if local < units:
        unit = axis_index(context.axes.tensor) * local + unit
    low = field.layout.columns(columns)[..., None] * units + unit[None, None]
    keep = keep_mask(context.key, high[:, :, None, None], low[None], rate)
    return drop(x, keep, rate)


def drop_attention(
    weights: Float[Array, "batch windows head tokens tokens"],
    field: Field,
    kind: Kind,
    window: int | IntPair,
    context: Context,
    rate: float,
    heads: int,
    *,
    part: Array | int | None = None,
) -> Float[Array, "batch windows head tokens tokens"]:
    """Dropout with a mask by global sample, window, head and pair of tokens."""
    if context.key is None or rate == 0.0:
        return weights
    batch, windows, local, tokens, _ = weights.shape
    sample = context.samples(batch)
    window_rows, window_columns = window_numbers(field, kind, window)
    rows = field.layout.size // (window if isinstance(window, int) else window[0])
    high = sample[:, None] * rows + window_rows[None, :]
    # The local heads are this one of the equal parts of all heads.
    part = axis_index(context.axes.tensor) if part is None else part
    head = part * local + jnp.arange(local)
    low = window_columns[:, None] * heads + head[None, :]
    low = low[:, :, None] * tokens**2 + jnp.arange(tokens**2)[None, None, :]
    low = low.reshape(1, windows, local, tokens, tokens)
    keep = keep_mask(context.key, high[:, :, None, None, None], low, rate)
    return drop(weights, keep, rate)


# The dim of the kernel of a layer that is sharded over tp.
TensorSplit = Literal["column", "row"] | None


def matmul(
    x: Channels,
    kernel: Float[Array, " channel *out"],
    context: Context | None = None,
    *,
    shape: tuple[int, int] | None = None,  # global (input, output); None: never float8
    split: TensorSplit = None,
    dtype: Any = None,
) -> Float[Array, "*batch *out"]:
    """Returns `x @ kernel`, in float8 if the context's precision selects the matrix."""
    float8 = None if context is None else context.precision.float8
    if not context or not shape or not float8 or not float8.takes(*shape):
        return dense(x, kernel, dtype=dtype)
    if context.float8_matrices is not None:
        context.float8_matrices.append(shape)
    tensor = context.axes.tensor
    summed, output_axis = (
        tensor if split == which else None for which in ("row", "column")
    )
    return float8_dense(
        x,
        kernel,
        summed=summed,
        output_axis=output_axis,
        dtype=dtype,
        gradient_dtype=getattr(jnp, float8.gradient_dtype),
    )


class LayerNorm(nnx.Module):
    """torch.nn.LayerNorm over channels; `scale` is the initial value of its scale."""

    def __init__(self, channels: int, *, scale: float = 1.0) -> None:
        self.scale = parameter(constant(scale), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, x: Channels) -> Channels:
        return layer_norm(x, self.scale[...], self.bias[...])

    @jax.named_scope(NORM)
    def with_skip(self, x: Channels) -> tuple[Channels, Channels]:
        """Returns the normalized array, and `x` for the residual connection."""
        return layer_norm_and_skip(x, self.scale[...], self.bias[...])


class GroupNorm(nnx.Module):
    """torch.nn.GroupNorm on fields; the statistics are those of the global field."""

    def __init__(
        self,
        num_groups: int,
        channels: int,
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
    ) -> None:
        # With as many groups as channels it is torch.nn.InstanceNorm2d.
        self.num_groups, self.epsilon, self.affine = num_groups, epsilon, affine
        if affine:
            self.scale = parameter(constant(1.0), (channels,), ("embed",))
            self.bias = parameter(constant(0.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, field: Field, context: Context | None = None) -> Field:
        del context
        affine = (self.scale[...], self.bias[...]) if self.affine else ()
        groups, epsilon = self.num_groups, self.epsilon
        return group_norm(field, *affine, num_groups=groups, epsilon=epsilon)


class Linear(nnx.Module):
    """torch.nn.Linear over the last dim: x @ kernel + bias, replicated or sharded."""

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        *,
        calls: int = 1,  # of the layer in a forward pass
    ) -> None:
        init = torch_uniform(channel_in)
        # Set by `nn.tensor_parallel`. "column": each tp device computes its output
        # channels. "row": each tp device multiplies its input channels; a `psum` sums
        # the products, then the bias is added.
        self.split: TensorSplit = None
        self.shape = (channel_in, channel_out)
        # In training, spectral norm runs a power iteration for each call, so each has
        # its own kernel.
        self.kernel = parameter(
            init,
            self.shape,
            ("embed", "embed"),
            matrix_out=(1,),
            calls=calls,
        )
        self.bias = parameter(init, (channel_out,), ("embed",))

    def __call__(
        self,
        x: Float[Array, "*batch channel_in"],
        context: Context | None = None,  # required for "row", and for float8
    ) -> Float[Array, "*batch channel_out"]:
        """Applies the layer."""
        kernel = of_call(self.kernel[...], 2, 0)
        if self.split == "row":
            product = sum_over_tensor(x, kernel, context, shape=self.shape)
        else:
            product = matmul(x, kernel, context, shape=self.shape, split=self.split)
        return add_bias(product, self.bias[...])


def sum_over_tensor(
    x: Float[Array, "*batch channel_in"],
    kernel: Float[Array, "channel_in channel_out"],
    context: Context | None,
    *,
    shape: tuple[int, int] | None = None,
) -> Float[Array, "*batch channel_out"]:
    """Returns `x @ kernel` with the rows of the kernel sharded over tp: one `psum`."""
    assert context is not None, "a block passes its context to a row layer"
    tensor = context.axes.tensor
    # Of one device the product itself is summed in float32 and rounded once.
    wide = context.precision.wide if tensor else None
    partial = matmul(x, kernel, context, shape=shape, split="row", dtype=wide)
    return psum(partial, tensor).astype(x.dtype)


class OutProjection(nnx.Module):
    """Row-parallel projection of the heads of attention: a `psum`, then the bias."""

    def __init__(self, channels: int, heads: int, dim_head: int) -> None:
        init = torch_uniform(heads * dim_head)
        self.shape = (heads * dim_head, channels)
        self.kernel = parameter(
            init,
            (heads, dim_head, channels),
            ("heads", "head_dim", "embed"),
            matrix_out=(2,),
        )
        self.bias = parameter(init, (channels,), ("embed",))

    def __call__(
        self, x: Float[Array, "*batch heads head_dim"], context: Context
    ) -> Channels:
        kernel = self.kernel[...]
        full = sum_over_tensor(
            x.reshape(*x.shape[:-2], -1),
            kernel.reshape(-1, kernel.shape[-1]),
            context,
            shape=self.shape,
        )
        return add_bias(full, self.bias[...])


class Conv(nnx.Module):
    """Two-dimensional convolution of a field, NHWC, as torch.nn.Conv2d."""

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: Padding | int = 0,  # zeros at every edge, or (low, high) of dims
        groups: int = 1,
        use_bias: bool = True,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        spectral_norm: bool = True,  # whether CREDIT's applies to the kernel
    ) -> None:
        shape = (kernel_size, kernel_size, channel_in // groups, channel_out)
        default = torch_uniform(math.prod(shape[:3]))
        # A 1 x 1 convolution can be sharded over tp in the same way as `Linear`.
        self.split: TensorSplit = None
        self.stride = (stride, stride)
        self.groups = groups
        self.use_bias = use_bias
        side = (padding, padding) if isinstance(padding, int) else None
        self.padding: Padding = (side, side) if side else padding  # pyright: ignore
        self.kernel = parameter(
            kernel_init or default,
            shape,
            (None, None, "conv_in", "conv_out"),
            matrix_out=(3,) if spectral_norm else None,
        )
        if use_bias:
            self.bias = parameter(bias_init or default, (channel_out,), ("conv_out",))

    def __call__(
        self,
        field: Field,
        out: Layout | None = None,  # of the rows; None as for `conv_field`
        context: Context | None = None,  # required if `split` is "row"
    ) -> Field:
        """Applies the layer."""
        if self.split == "row":
            kernel = self.kernel[...][0, 0]
            field = field.like(sum_over_tensor(field.data, kernel, context))
        else:
            field = conv_field(
                field,
                self.kernel[...],
                stride=self.stride,
                padding=self.padding,
                groups=self.groups,
                out=out,
            )
        if not self.use_bias:
            return field
        return field.like(add_bias(field.data, self.bias[...]))


class FeedForward(nnx.Module):
    """LayerNorm, up, exact GELU, dropout, down; with residual."""

    tp_plan = (("up", "down"),)

    def __init__(
        self,
        channels: int,
        *,
        expansion: int = 4,
        dropout: float = 0.0,
    ) -> None:
        self.hidden = channels * expansion
        self.dropout = dropout
        self.norm = LayerNorm(channels)
        self.up = Linear(channels, self.hidden)
        self.down = Linear(self.hidden, channels)

    @jax.named_scope(FEED_FORWARD)
    def __call__(self, field: Field, context: Context) -> Field:
        normal, skip = self.norm.with_skip(field.data)
        x = gelu(self.up(normal, context))
        x = drop_units(x, field, context, self.dropout, self.hidden)
        return field.like(skip + self.down(x, context))


class BatchNorm(nnx.Module):
    """torch.nn.BatchNorm2d on fields, by the global batch: torch.nn.SyncBatchNorm."""

    def __init__(
        self, channels: int, *, momentum: float | None = 0.1, epsilon: float = 1e-5
    ) -> None:
        self.momentum = momentum
        self.epsilon = epsilon
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))
        self.mean = batch_stat(constant(0.0), (channels,))
        self.variance = batch_stat(constant(1.0), (channels,))
        self.count = batch_stat(constant(0), (), jnp.int32)

    def __call__(self, field: Field, context: Context) -> Field:
        field, after = batch_norm_field(
            field,
            self.scale[...],
            self.bias[...],
            RunningStatistics(self.mean[...], self.variance[...], self.count[...]),
            training=context.training,
            momentum=self.momentum,
            epsilon=self.epsilon,
            axes=context.axes.data,
        )
        self.update(after)
        return field

    def update(self, after: RunningStatistics) -> None:
        """Stores the running statistics after a batch."""
        for name, value in vars(after).items():
            # Weights have a varying type in a training step, so statistics computed
            # from them are varying, too, although their values are equal.
            axes = tuple(sorted(varying_axes(value)))
            getattr(self, name)[...] = lax.pmax(value, axes) if axes else value


# The arguments with which CREDIT's crossformer calls the factory of these modules.
REDUCTION = 32
SPATIAL_KERNEL = 7


class ChannelAttention(nnx.Module):
    """CREDIT's ECABlock; its 1-D convolution has no spectral norm."""

    def __init__(self, channels: int) -> None:
        num_taps = neighbor_taps(channels)
        self.taps = parameter(torch_uniform(num_taps), (num_taps,), (None,))

    def __call__(self, field: Field, context: Context) -> Field:
        return attention.efficient_channel_attention(field, self.taps[...])


class SpatialAttention(nnx.Module):
    """CREDIT's LightSpatialAttention."""

    def __init__(self, channels: int) -> None:
        size = SPATIAL_KERNEL
        self.kernel = parameter(
            torch_uniform(2 * size**2),
            (size, size, 2, 1),
            (None, None, None, None),
            matrix_out=(3,),
        )

    def __call__(self, field: Field, context: Context) -> Field:
        return attention.spatial_attention(field, self.kernel[...])


class MixedAttention(nnx.Module):
    """CREDIT's EfficientMixedAttention: channel attention, then spatial attention."""

    def __init__(self, channels: int) -> None:
        self.channels = ChannelAttention(channels)
        self.points = SpatialAttention(channels)

    def __call__(self, field: Field, context: Context) -> Field:
        return self.points(self.channels(field, context), context)


class SCSEAttention(nnx.Module):
    """CREDIT's SCSEAttention: the sum of channel and spatial gates."""

    def __init__(self, channels: int, *, depthwise: bool) -> None:
        hidden = max(channels // REDUCTION, 8)
        self.depthwise = depthwise
        self.squeeze = _matrix(channels, hidden)
        self.expand = _matrix(hidden, channels)
        if depthwise:
            self.scale = _matrix(1, channels)
            self.scaled_points = _matrix(channels, 1)
        else:
            self.points = _matrix(channels, 1)

    def __call__(self, field: Field, context: Context) -> Field:
        if self.depthwise:
            points = self.scaled_points[...][:, 0] * self.scale[...][0]
        else:
            points = self.points[...][:, 0]
        kernels = self.squeeze[...], self.expand[...], points
        return attention.scse(field, *((kernel, None) for kernel in kernels))


class CoordinateAttention(nnx.Module):
    """CREDIT's CoordinateAttention: gates of rows and of columns, with a batch norm."""

    def __init__(self, channels: int) -> None:
        hidden = max(8, channels // REDUCTION)
        self.squeeze = Linear(channels, hidden)
        self.norm = BatchNorm(hidden)
        self.lat = Linear(hidden, channels)
        self.lon = Linear(hidden, channels)

    def __call__(self, field: Field, context: Context) -> Field:
        squeeze, lat, lon = (
            (layer.kernel[...], layer.bias[...])
            for layer in (self.squeeze, self.lat, self.lon)
        )
        norm = partial(self.norm, context=context)
        return attention.coordinate_attention(field, squeeze, norm, lat, lon)


def _matrix(channel_in: int, channel_out: int) -> Parameter:
    """Declares the kernel of a 1 x 1 convolution with spectral norm."""
    return parameter(
        torch_uniform(channel_in),
        (channel_in, channel_out),
        ("embed", "embed"),
        matrix_out=(1,),
    )


# By CREDIT's `attention_type`: number of channels -> module(field, context) -> field.
FIELD_ATTENTION: dict[str, Callable[[int], Any]] = {
    "coordinate": CoordinateAttention,
    "eca": ChannelAttention,
    "spatial": SpatialAttention,
    "mixed": MixedAttention,
    "scse_standard": partial(SCSEAttention, depthwise=False),
    "scse_optimized": partial(SCSEAttention, depthwise=True),
}
