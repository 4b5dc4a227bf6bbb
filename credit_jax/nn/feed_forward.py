"""The feed-forward network of a transformer block, sharded over tp."""

from __future__ import annotations

import jax
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.dropout import drop_units
from credit_jax.nn.layers import LayerNorm, Linear
from credit_jax.ops.gelu import gelu
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import FEED_FORWARD


class FeedForward(nnx.Module):
    """LayerNorm, up, exact GELU, dropout, down; with residual.

    Args of the constructor:
        channels: number of channels of the field.
        expansion: hidden units divided by channels.
        dropout: dropout rate of the hidden units.
    """

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
