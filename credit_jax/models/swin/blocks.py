"""Swin Transformer V2: position biases, cosine attention in shifted windows, blocks.

Heads are sharded over tp; blocks have their norms after the branches.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.nn.layers import (
    LayerNorm,
    Linear,
    OutProjection,
    drop_attention,
    drop_units,
    matmul,
)
from credit_jax.nn.parameters import parameter
from credit_jax.ops import attend, attention_logits
from credit_jax.ops.activations import gelu
from credit_jax.ops.dense import add_bias
from credit_jax.ops.random import drop, drop_path, keep_mask
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.ops.window_attention import (
    beyond_edge,
    pairs_of_offsets,
    scaled_offsets,
)
from credit_jax.parallel.compiler import ATTENTION, FEED_FORWARD, POSITION_BIAS
from credit_jax.parallel.domain.rearrange import roll_field
from credit_jax.parallel.domain.windows import merge, partition
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.rows.layout import Field

# Upper limit of the bias of `OffsetBias`.
LARGEST = 16.0


class OffsetBias(nnx.Module):
    """timm's position bias: 16 sigmoid of a network over all offsets."""

    def __init__(self, heads: int, window: IntPair) -> None:
        self.window, hidden = window, 512
        self.hidden = Linear(2, hidden)
        self.out = parameter(
            torch_uniform(hidden), (hidden, heads), ("embed", "heads"), matrix_out=(1,)
        )

    @jax.named_scope(POSITION_BIAS)
    def __call__(self, context: Context) -> Float[Array, "heads tokens tokens"]:
        """Returns the bias of every pair of tokens of a window, float32 or wider."""
        dtype = self.hidden.kernel[...].dtype
        x = jnp.asarray(scaled_offsets(self.window), dtype)
        table = dense(jax.nn.relu(self.hidden(x)), self.out[...])
        wide = table.astype(jnp.promote_types(dtype, jnp.float32))
        table = LARGEST * jax.nn.sigmoid(wide)
        return jnp.moveaxis(pairs_of_offsets(table, self.window), -1, 0)


class PairBias(nnx.Module):
    """The position bias of Swin V2 CR: a network over offsets of pairs of tokens."""

    # In training it has dropout independently of the rates of the config.

    def __init__(self, heads: int, window: IntPair) -> None:
        self.window, self.dropout, hidden = window, 0.125, 384
        self.hidden = Linear(2, hidden)
        init = torch_uniform(hidden)
        self.out = parameter(init, (hidden, heads), ("embed", "heads"), matrix_out=(1,))
        self.bias = parameter(init, (heads,), ("heads",))

    @jax.named_scope(POSITION_BIAS)
    def __call__(self, context: Context) -> Float[Array, "heads tokens tokens"]:
        """Returns the bias of every pair of tokens of a window."""
        # Rows and columns from token j to token i: (tokens, tokens, 2).
        grid = np.meshgrid(*map(np.arange, self.window), indexing="ij")
        tokens = np.stack(grid, -1).reshape(-1, 2)
        offsets = (tokens[:, None] - tokens[None, :]).astype(np.float32)
        logs = np.sign(offsets) * np.log(1 + np.abs(offsets))
        x = jnp.asarray(logs.reshape(-1, 2), self.hidden.kernel[...].dtype)
        x = jax.nn.relu(self.hidden(x))
        if context.key is not None:
            pair, unit = map(jnp.arange, x.shape)
            keep = keep_mask(context.key, pair[:, None], unit[None], self.dropout)
            x = drop(x, keep, self.dropout)
        bias = add_bias(dense(x, self.out[...]), self.bias[...])
        return bias.T.reshape(-1, *offsets.shape[:2])


# Added to logits of masked pairs of tokens, as in CREDIT and timm. It is not minus
# infinity: the weight is not zero if the logit scale is near its maximum of 100.
MASKED = -100.0
# Maximum of the logarithm of the logit scale.
MAX_LOGIT_SCALE = math.log(100.0)
# Minimum norm by which queries and keys are divided, as torch.nn.functional.normalize.
EPSILON = 1e-12


class BiasedQueryKeyValue(nnx.Module):
    """Column-parallel projection to q, k and v; heads sharded over tp."""

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
        if self.key_bias:
            bias = self.bias[...]
        else:
            q, v = self.q_bias[...], self.v_bias[...]
            bias = jnp.stack([q, jnp.zeros_like(q), v])
        flat = qkv.reshape(*qkv.shape[:3], -1)
        qkv = add_bias(flat, bias.reshape(-1)).reshape(qkv.shape)
        return jnp.transpose(qkv, (3, 0, 1, 4, 2, 5))


class ShiftedWindowAttention(nnx.Module):
    """Cosine attention within windows of a field that may be shifted; no residual."""

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
        self.position_bias: Any = bias
        self.qkv = qkv
        self.proj = OutProjection(channels, heads, channels // heads)

    @jax.named_scope(ATTENTION)
    def __call__(self, field: Field, context: Context, shift: IntPair) -> Field:
        """Attends within windows."""
        attend = context.remat.attention(
            lambda data: self._attend(field.like(data), context, shift).data
        )
        return field.like(attend(field.data))

    def _attend(self, field: Field, context: Context, shift: IntPair) -> Field:
        x = partition(field, "short", self.window)
        q, k, v = self.qkv(x, context)
        dtype = context.precision.wide
        logits = attention_logits(_unit(q), _unit(k), dtype=dtype)
        # exp(min(logit scale, ln 100)), with torch's gradient at the limit.
        scale = self.logit_scale[...].astype(dtype)
        scale = jnp.where(scale <= MAX_LOGIT_SCALE, scale, MAX_LOGIT_SCALE)
        logits = logits * jnp.exp(scale)[None, None, :, None, None]
        if self.position_bias is not None:
            bias = self.position_bias(context.fold_in(0))
            logits = logits + bias.astype(logits.dtype)[None, None]
        if any(shift):
            # `MASKED` for pairs of tokens from opposite edges, otherwise 0.
            rows, columns = beyond_edge(self.window, shift)
            if self.columns_meet:
                columns = np.zeros_like(columns)
            # The global index of the first row of each local row of windows.
            first = field.layout.global_rows().reshape(-1, self.window[0])[:, 0]
            last_row = first == field.layout.size - self.window[0]
            num_columns = field.data.shape[2] // self.window[1]
            last_column = np.arange(num_columns) == num_columns - 1
            by_row = last_row[:, None, None, None] & rows[None, None]
            by_column = last_column[:, None, None] & columns[None]
            masked = jnp.where(by_row | by_column[None], MASKED, 0.0)
            mask = masked.reshape(-1, *rows.shape).astype(logits.dtype)
            logits = logits + mask[None, :, None]
        weights = jax.nn.softmax(logits, -1).astype(v.dtype)
        how = field, "short", self.window, context.fold_in(1), self.attn_drop
        weights = drop_attention(weights, *how, self.heads)
        mixed = jnp.swapaxes(attend(weights, v), 2, 3)
        out = merge(self.proj(mixed, context), field, "short", self.window)
        context = context.fold_in(2)
        dropped = drop_units(out.data, field, context, self.proj_drop, self.channels)
        return field.like(dropped)


def _unit(x: Float[Array, "*batch channel"]) -> Float[Array, "*batch channel"]:
    """Returns x / max(|x|, `EPSILON`), computed in float32 or wider."""
    # The gradient at zero is that of x / epsilon, as in torch.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    square = jnp.sum(wide * wide, -1, keepdims=True)
    length = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    length = jnp.where(square > 0, length, 0.0)
    return (wide / jnp.maximum(length, EPSILON)).astype(x.dtype)


# Static arguments of blocks, which alternate.
PLAIN, SHIFTED = {"shifted": False}, {"shifted": True}


class Mlp(nnx.Module):
    """Up, exact GELU, dropout, down, dropout, as timm's Mlp."""

    tp_plan = (("fc1", "fc2"),)

    def __init__(self, channels: int, hidden: int, *, dropout: float = 0.0) -> None:
        self.channels, self.hidden, self.dropout = channels, hidden, dropout
        self.fc1 = Linear(channels, hidden)
        self.fc2 = Linear(hidden, channels)

    @jax.named_scope(FEED_FORWARD)
    def __call__(self, field: Field, context: Context) -> Field:
        first, second = context.fold_in(0), context.fold_in(1)
        x = gelu(self.fc1(field.data, context))
        x = self.fc2(drop_units(x, field, first, self.dropout, self.hidden), context)
        x = drop_units(x, field, second, self.dropout, self.channels)
        return field.like(x)


class SwinBlock(nnx.Module):
    """x + norm(attention(x)), then x + norm(feed_forward(x))."""

    # Input and output have complete windows on every shard. A shifted block rolls the
    # field, keeping its layout, so its windows cross the borders of the windows of the
    # previous block.

    def __init__(
        self,
        attention: ShiftedWindowAttention,
        hidden: int,
        shift: IntPair,
        *,
        norm_scale: float = 1.0,
        drop_path: tuple[float, ...] = (),
    ) -> None:
        self.shift, self.drop_path = shift, drop_path
        channels = attention.channels
        self.attention = attention
        self.norm_0 = LayerNorm(channels, scale=norm_scale)
        self.feed_forward = Mlp(channels, hidden, dropout=attention.proj_drop)
        self.norm_1 = LayerNorm(channels, scale=norm_scale)

    def __call__(self, field: Field, context: Context, *, shifted: bool) -> Field:
        rows, columns = self.shift if shifted else (0, 0)
        layout = field.layout
        field = roll_field(field, (-rows, -columns), out=layout)
        branch = self.attention(field, context.fold_in(0), (rows, columns))
        field = self._add(field, self.norm_0(branch.data), context, 0)
        branch = self.feed_forward(field, context.fold_in(1))
        field = self._add(field, self.norm_1(branch.data), context, 1)
        return roll_field(field, (rows, columns), out=layout)

    def _add(self, field: Field, x: jax.Array, context: Context, branch: int) -> Field:
        if context.key is not None and any(self.drop_path):
            rate = jnp.asarray(self.drop_path)[context.block]
            samples = context.samples(x.shape[0])
            x = drop_path(x, context.key, samples, rate, branch=branch)
        return field.like(field.data + x)
