"""Window attention of CrossFormer and WXFormer, with heads sharded over tp."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.kernels import fuses, window_attention
from credit_jax.nn import layers
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import parameter
from credit_jax.ops import attend, attention_logits
from credit_jax.ops.window_attention import bias_positions, pairs_of_offsets
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.compiler import ATTENTION, POSITION_BIAS
from credit_jax.parallel.domain import windows
from credit_jax.parallel.domain.attention import HeadExchange
from credit_jax.parallel.params.spec import torch_uniform
from credit_jax.parallel.rows.layout import Field

Bias = Float[Array, "tokens tokens"]


class PositionBias(nnx.Module):
    """CREDIT's DynamicPositionBias: a small network over relative positions."""

    def __init__(self, channels: int) -> None:
        self.linear_0 = layers.Linear(2, channels)
        self.norm_0 = layers.LayerNorm(channels)
        self.linear_1 = layers.Linear(channels, channels)
        self.norm_1 = layers.LayerNorm(channels)
        self.linear_2 = layers.Linear(channels, channels)
        self.norm_2 = layers.LayerNorm(channels)
        self.linear_3 = layers.Linear(channels, 1)

    @jax.named_scope(POSITION_BIAS)
    def __call__(self, window: int) -> Float[Array, "tokens tokens"]:
        """Returns the bias of every pair of tokens of a window, (w * w, w * w)."""
        dtype = self.linear_0.kernel[...].dtype
        x = jnp.asarray(bias_positions(window), dtype)
        x = jax.nn.relu(self.norm_0(self.linear_0(x)))
        x = jax.nn.relu(self.norm_1(self.linear_1(x)))
        x = jax.nn.relu(self.norm_2(self.linear_2(x)))
        # The table has 2w + 1 columns but is read with a stride of 2w - 1, as in CREDIT
        # (2026.2.0, models/wxformer/crossformer.py:478, 528), on which trained weights
        # depend.
        table = self.linear_3(x)[:, 0][: (2 * window - 1) ** 2]
        return pairs_of_offsets(table, (window, window))


class QueryKeyValue(nnx.Module):
    """Column-parallel projection to q, k and v without bias; heads sharded over tp."""

    # Whether the kernel that reads fields in place takes its results.
    in_place = True

    def __init__(self, channels: int, heads: int, dim_head: int) -> None:
        self.channels = channels
        self.width = heads * dim_head
        self.kernel = parameter(
            torch_uniform(channels),
            (channels, 3, heads, dim_head),
            ("embed", None, "heads", "head_dim"),
            matrix_out=(1, 2, 3),
        )

    def kernels(self) -> tuple[Array, Array]:
        """The matrix of q, k and v, and that of v alone."""
        return self.kernel[...], self.kernel[...][:, 2]

    def __call__(
        self, x: Float[Array, "batch windows tokens channel"], context: Context
    ) -> Float[Array, "three batch windows heads tokens head_dim"]:
        qkv = self.side_by_side(x, context)
        return jnp.transpose(qkv, (3, 0, 1, 4, 2, 5))

    def side_by_side(
        self, x: Float[Array, "*batch channel"], context: Context
    ) -> Float[Array, "*batch three heads head_dim"]:
        """Returns q, k and v of every local head at each point."""
        shape = (self.channels, 3 * self.width)
        return layers.matmul(x, self.kernels()[0], context, shape=shape, split="column")

    def values(
        self, x: Float[Array, "*batch channel"], context: Context
    ) -> Float[Array, "*batch heads head_dim"]:
        """Returns only the values v of every local head at each point."""
        shape = (self.channels, self.width)
        return layers.matmul(x, self.kernels()[1], context, shape=shape, split="column")


class SeparateQueryKeyValue(QueryKeyValue):
    """`QueryKeyValue` with three matrices, each with its own spectral norm."""

    in_place = False

    def __init__(self, channels: int, heads: int, dim_head: int) -> None:
        self.channels = channels
        self.width = heads * dim_head
        self.q, self.k, self.v = (
            parameter(
                torch_uniform(channels),
                (channels, heads, dim_head),
                ("embed", "heads", "head_dim"),
                matrix_out=(1, 2),
            )
            for _ in range(3)
        )

    def kernels(self) -> tuple[Array, Array]:
        """See `QueryKeyValue.kernels`."""
        q, k, v = self.q[...], self.k[...], self.v[...]
        return jnp.stack([q, k, v], 1), v


class WindowAttention(nnx.Module):
    """Attention in neighboring (short) or dilated (long) windows, with residual."""

    def __init__(
        self,
        channels: int,
        kind: windows.Kind,
        window: int,
        *,
        dim_head: int = 32,
        dropout: float = 0.0,
        query_key_value: type[QueryKeyValue] = QueryKeyValue,
    ) -> None:
        self.kind: windows.Kind = kind
        self.window = window
        self.heads = channels // dim_head
        self.scale = dim_head**-0.5
        self.dropout = dropout
        self.norm = layers.LayerNorm(channels)
        self.to_qkv = query_key_value(channels, self.heads, dim_head)
        self.to_out = layers.OutProjection(channels, self.heads, dim_head)
        self.position_bias = PositionBias(channels // 4)

    def bias(self) -> Bias | None:
        """Returns the bias of every pair of tokens; None for windows of one token."""
        return None if self.window == 1 else self.position_bias(self.window)

    @jax.named_scope(ATTENTION)
    def __call__(
        self, field: Field, context: Context, bias: Bias | None = None
    ) -> Field:
        """Attends within windows."""
        bias = self.bias() if bias is None else bias
        attend = context.remat.attention(
            lambda data: self._attend(field.like(data), context, bias).data
        )
        return field.like(attend(field.data))

    def _attend(self, field: Field, context: Context, bias: Any) -> Field:
        normal, skip = self.norm.with_skip(field.data)
        field = field.like(normal)
        # Dropout acts on the weights of attention, which the kernel never stores.
        drops = context.key is not None and self.dropout > 0.0
        fused = self.to_qkv.in_place and not drops and fuses(normal)
        if self.window > 1 and context.axes.ulysses > 1:
            mixed = self._mix_by_heads(field, context, bias, fuses=fused)
        elif fused and self.window == 1:
            mixed = self.to_qkv.values(field.data, context)
        elif fused:
            # By a kernel that reads fields in place.
            qkv = field.like(self.to_qkv.side_by_side(field.data, context))
            grid = windows.window_grid(qkv, self.kind, self.window)
            mixed = window_attention(qkv.data, bias, grid)
        else:
            # Without a kernel, as with dropout, windows are arrays of their own.
            x = windows.partition(field, self.kind, self.window)
            if self.window == 1:
                # The softmax over a single token is 1: only dropout and v are left.
                v = jnp.swapaxes(self.to_qkv.values(x, context), 2, 3)
                mixed = self._drop(jnp.ones_like(v[..., :1]), field, context) * v
            else:
                mixed = self._mix(self.to_qkv(x, context), bias, field, context)
            out = self.to_out(jnp.swapaxes(mixed, 2, 3), context)
            return field.like(
                skip + windows.merge(out, field, self.kind, self.window).data
            )
        return field.like(skip + self.to_out(mixed, context))

    def _mix_by_heads(
        self, field: Field, context: Context, bias: Bias, *, fuses: bool
    ) -> Float[Array, "batch rows columns heads head_dim"]:
        """Returns the weighted sum of values, exchanging heads for rows around it."""
        degree = context.axes.ulysses
        exchange = HeadExchange(field.layout, self.kind, self.window, degree)
        qkv = exchange.to_heads(self.to_qkv.side_by_side(field.data, context))
        if fuses:
            grid = windows.window_grid(qkv, self.kind, self.window)
            return exchange.to_rows(window_attention(qkv.data, bias, grid))
        *points, three, heads, size = qkv.data.shape
        flat = qkv.like(qkv.data.reshape(*points, -1))
        x = windows.partition(flat, self.kind, self.window)
        x = x.reshape(*x.shape[:3], three, heads, size).transpose(3, 0, 1, 4, 2, 5)
        part = axis_index(context.axes.tensor) * degree + exchange.part
        mixed = jnp.swapaxes(self._mix(x, bias, flat, context, part), 2, 3)
        mixed = mixed.reshape(*mixed.shape[:3], -1)
        out = windows.merge(mixed, flat, self.kind, self.window).data
        return exchange.to_rows(out.reshape(*points, heads, size))

    def _mix(
        self,
        qkv: Float[Array, "three batch windows heads tokens head_dim"],
        bias: Bias,
        field: Field,
        context: Context,
        part: Array | int | None = None,
    ) -> Float[Array, "batch windows heads tokens head_dim"]:
        """Returns the weighted sum of values; `part` as for `drop_attention`."""
        q, k, v = qkv
        logits = attention_logits(q * self.scale, k, dtype=context.precision.wide)
        logits = logits + bias.astype(logits.dtype)[None, None, None]
        weights = jax.nn.softmax(logits, -1).astype(v.dtype)
        return attend(self._drop(weights, field, context, part), v)

    def _drop(
        self,
        weights: Array,
        field: Field,
        context: Context,
        part: Array | int | None = None,
    ) -> Array:
        """Dropout with a mask by global sample, window, head and pair of tokens."""
        how = field, self.kind, self.window, context, self.dropout, self.heads
        return layers.drop_attention(weights, *how, part=part)
