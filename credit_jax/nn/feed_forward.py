"""The feed-forward network of a transformer block, split over tp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm, Linear
from credit_jax.ops.dropout import drop, keep_mask
from credit_jax.ops.gelu import gelu
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import FEED_FORWARD


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
        x = self._drop(gelu(self.up(normal, context)), field, context)
        return field.like(skip + self.down(x, context))

    def _drop(self, x: Array, field: Field, context: Context) -> Array:
        """Dropout by global sample, row, column and hidden unit."""
        if context.key is None or self.dropout == 0.0:
            return x
        batch, _, columns, units = x.shape
        sample = context.samples(batch)
        high = sample[:, None] * field.layout.size + field.layout.global_rows()[None]
        unit = axis_index(context.axes.tensor) * units + jnp.arange(units)
        low = jnp.arange(columns)[:, None] * self.hidden + unit[None, :]
        keep = keep_mask(
            context.key, high[:, :, None, None], low[None, None], self.dropout
        )
        return drop(x, keep, self.dropout)
