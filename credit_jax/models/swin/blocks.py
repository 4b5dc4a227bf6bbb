"""Blocks of Swin Transformer V2: attention and feed-forward, with post-norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from credit_jax.models.swin.attention import ShiftedWindowAttention
from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm, Linear, drop_units
from credit_jax.ops.activations import gelu
from credit_jax.ops.padding import IntPair
from credit_jax.ops.random import drop_path
from credit_jax.parallel.domain.rearrange import roll_field
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import FEED_FORWARD

# Static arguments of blocks, which alternate.
PLAIN, SHIFTED = {"shifted": False}, {"shifted": True}


class Mlp(nnx.Module):
    """Up, exact GELU, dropout, down, dropout, as timm's Mlp.

    Args of the constructor:
        channels, hidden: numbers of channels and of hidden units.
        dropout: dropout rate of the hidden units and of the output.
    """

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
    """x + norm(attention(x)), then x + norm(feed_forward(x)).

    Input and output have complete windows on every shard. A shifted block rolls the
    field, keeping its layout, so its windows cross the borders of the windows of the
    previous block.

    Args of the constructor:
        attention, feed_forward: the branches.
        channels: number of channels of the field.
        shift: rows and columns by which a shifted block rolls the field.
        norm_scale: initial value of the scales of the norms.
        drop_path: probability of dropping a branch for a sample; or the probabilities
            of all blocks of a stack.
    """

    def __init__(
        self,
        attention: ShiftedWindowAttention,
        feed_forward: Mlp,
        channels: int,
        shift: IntPair,
        *,
        norm_scale: float = 1.0,
        drop_path: float | tuple[float, ...] = 0.0,
    ) -> None:
        self.shift, self.drop_path = shift, drop_path
        self.attention = attention
        self.norm_0 = LayerNorm(channels, scale=norm_scale)
        self.feed_forward = feed_forward
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
        rates = self.drop_path if isinstance(self.drop_path, tuple) else None
        if context.key is not None and (any(rates) if rates else self.drop_path):
            rate = jnp.asarray(rates or self.drop_path)
            rate = rate[context.block] if rates else rate
            samples = context.samples(x.shape[0])
            x = drop_path(x, context.key, samples, rate, branch=branch)
        return field.like(field.data + x)
