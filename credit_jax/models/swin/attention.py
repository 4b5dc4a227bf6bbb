"""Cosine attention in shifted windows (Swin Transformer V2), heads sharded over tp."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.swin.position_bias import OffsetBias, PairBias
from credit_jax.nn.context import Context
from credit_jax.nn.layers import OutProjection, drop_attention, drop_units, matmul
from credit_jax.nn.parameters import parameter
from credit_jax.ops import attend, attention_logits
from credit_jax.ops.dense import add_bias
from credit_jax.ops.padding import IntPair
from credit_jax.ops.window_attention import beyond_edge
from credit_jax.parallel.domain.windows import merge, partition, window_numbers
from credit_jax.parallel.params.initializers import constant, torch_uniform
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.scopes import ATTENTION

# Added to logits of masked pairs of tokens, as in CREDIT and timm. It is not minus
# infinity: the weight is not zero if the logit scale is near its maximum of 100.
MASKED = -100.0
# Maximum of the logarithm of the logit scale.
MAX_LOGIT_SCALE = math.log(100.0)
# Minimum norm by which queries and keys are divided, as torch.nn.functional.normalize.
EPSILON = 1e-12


class BiasedQueryKeyValue(nnx.Module):
    """Column-parallel projection to q, k and v; heads sharded over tp.

    Args of the constructor:
        channels: number of channels of the field.
        heads: number of heads, a divisor of `channels`.
        key_bias: whether keys have a bias, too.
        trained: whether the kernel is trained; otherwise it is frozen.
        divided: whether spectral norm divides the kernel; otherwise its u and v are
            constant.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        key_bias: bool,
        trained: bool = True,
        divided: bool = True,
    ) -> None:
        size = channels // heads
        init, dims = torch_uniform(channels), ("heads", "head_dim")
        self.key_bias = key_bias
        self.shape = (channels, 3 * channels)
        self.kernel = parameter(
            init,
            (channels, 3, heads, size),
            ("embed", None, *dims),
            matrix_out=(1, 2, 3),
            calls=1 if divided else 0,
            frozen=not trained,
        )
        if key_bias:
            self.bias = parameter(init, (3, heads, size), (None, *dims))
        else:
            self.q_bias = parameter(constant(0.0), (heads, size), dims)
            self.v_bias = parameter(constant(0.0), (heads, size), dims)

    def __call__(
        self, x: Float[Array, "batch windows tokens channel"], context: Context
    ) -> Float[Array, "three batch windows heads tokens head_dim"]:
        qkv = matmul(x, self.kernel[...], context, shape=self.shape, split="column")
        flat = qkv.reshape(*qkv.shape[:3], -1)
        qkv = add_bias(flat, self._bias().reshape(-1)).reshape(qkv.shape)
        return jnp.transpose(qkv, (3, 0, 1, 4, 2, 5))

    def _bias(self) -> Float[Array, "three heads head_dim"]:
        if self.key_bias:
            return self.bias[...]
        q, v = self.q_bias[...], self.v_bias[...]
        return jnp.stack([q, jnp.zeros_like(q), v])


class ShiftedWindowAttention(nnx.Module):
    """Cosine attention within windows of a field that may be shifted; no residual.

    Args of the constructor:
        channels: number of channels of the field.
        heads: number of heads.
        window: rows and columns of a window.
        qkv: the projection to queries, keys and values.
        bias: the position bias, or None.
        columns_meet: whether the first and the last column are neighbors, so only rows
            of opposite edges are masked.
        attn_drop, proj_drop: dropout rates of the attention weights and of the output.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        window: IntPair,
        *,
        qkv: BiasedQueryKeyValue,
        bias: OffsetBias | PairBias | None,
        columns_meet: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        self.channels, self.heads, self.window = channels, heads, window
        self.columns_meet = columns_meet
        self.attn_drop, self.proj_drop = attn_drop, proj_drop
        self.logit_scale = parameter(constant(math.log(10.0)), (heads,), ("heads",))
        chosen: Any = bias
        self.position_bias = chosen
        self.qkv = qkv
        self.proj = OutProjection(channels, heads, channels // heads)

    @jax.named_scope(ATTENTION)
    def __call__(self, field: Field, context: Context, shift: IntPair) -> Field:
        """Attends within windows.

        Args:
            field: (batch, lat, lon, channel), after the shift, with complete windows on
                every shard.
            context: context of the block.
            shift: rows and columns by which the field is shifted.
        """

        def attended(data: Array) -> Array:
            return self._attend(field.like(data), context, shift).data

        return field.like(context.remat.attention(attended)(field.data))

    def _attend(self, field: Field, context: Context, shift: IntPair) -> Field:
        x = partition(field, "short", self.window)
        q, k, v = self.qkv(x, context)
        dtype = context.precision.wide
        logits = attention_logits(_unit(q), _unit(k), dtype=dtype)
        logits = logits * self._scale(dtype)[None, None, :, None, None]
        if self.position_bias is not None:
            bias = self.position_bias(context.fold_in(0))
            logits = logits + bias.astype(logits.dtype)[None, None]
        if any(shift):
            mask = self._mask(field, shift).astype(logits.dtype)
            logits = logits + mask[None, :, None]
        weights = jax.nn.softmax(logits, -1).astype(v.dtype)
        rows, columns = window_numbers(field, "short", self.window)
        weights = drop_attention(
            weights,
            rows,
            columns,
            context.fold_in(1),
            self.attn_drop,
            self.heads,
            field.layout.size // self.window[0],
        )
        mixed = jnp.swapaxes(attend(weights, v), 2, 3)
        out = merge(self.proj(mixed, context), field, "short", self.window)
        context = context.fold_in(2)
        dropped = drop_units(out.data, field, context, self.proj_drop, self.channels)
        return field.like(dropped)

    def _scale(self, dtype: jnp.dtype) -> Float[Array, " heads"]:
        """Returns exp(min(logit scale, ln 100)), with torch's gradient at the limit."""
        scale = self.logit_scale[...].astype(dtype)
        return jnp.exp(jnp.where(scale <= MAX_LOGIT_SCALE, scale, MAX_LOGIT_SCALE))

    def _mask(
        self, field: Field, shift: IntPair
    ) -> Float[Array, "windows tokens tokens"]:
        """Returns `MASKED` for pairs of tokens from opposite edges, otherwise 0."""
        rows, columns = beyond_edge(self.window, shift)
        if self.columns_meet:
            columns = np.zeros_like(columns)
        first = self._first_rows(field.layout)
        last_row = first == field.layout.size - self.window[0]
        num_columns = field.data.shape[2] // self.window[1]
        last_column = np.arange(num_columns) == num_columns - 1
        by_row = last_row[:, None, None, None] & rows[None, None]
        by_column = last_column[:, None, None] & columns[None]
        masked = by_row | by_column[None]
        return jnp.where(masked, MASKED, 0.0).reshape(-1, *rows.shape)

    def _first_rows(self, layout: Layout) -> Array:
        """Returns the global index of the first row of each local row of windows."""
        return layout.global_rows().reshape(-1, self.window[0])[:, 0]


def _unit(x: Float[Array, "*batch channel"]) -> Float[Array, "*batch channel"]:
    """Returns x / max(|x|, `EPSILON`), computed in float32 or wider.

    The gradient at zero is that of x / epsilon, as in torch.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    square = jnp.sum(wide * wide, -1, keepdims=True)
    length = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    length = jnp.where(square > 0, length, 0.0)
    return (wide / jnp.maximum(length, EPSILON)).astype(x.dtype)
