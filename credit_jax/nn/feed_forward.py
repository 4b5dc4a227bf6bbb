"""The pointwise two-layer network of a transformer block, split over tp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dropout import drop, keep_mask
from credit_jax.parallel.collectives import axis_index, psum
from credit_jax.parallel.initialisers import torch_uniform
from credit_jax.parallel.layouts import Field


class ColumnLinear(nnx.Module):
    """Each tp shard makes its own hidden units; no communication."""

    def __init__(self, channels: int, hidden: int) -> None:
        init = torch_uniform(channels)
        self.kernel = parameter(
            init, (channels, hidden), ("embed", "mlp"), matrix_out=(1,)
        )
        self.bias = parameter(init, (hidden,), ("mlp",))

    def __call__(
        self, x: Float[Array, "batch rows lon channel"]
    ) -> Float[Array, "batch rows lon hidden"]:
        return x @ self.kernel[...] + self.bias[...].reshape(1, 1, 1, -1)


class RowLinear(nnx.Module):
    """Each tp shard takes its own hidden units; one `psum`, then the bias once."""

    def __init__(self, hidden: int, channels: int) -> None:
        init = torch_uniform(hidden)
        self.kernel = parameter(
            init, (hidden, channels), ("mlp", "embed"), matrix_out=(1,)
        )
        self.bias = parameter(init, (channels,), ("embed",))

    def __call__(
        self, x: Float[Array, "batch rows lon hidden"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        wide = jnp.promote_types(context.precision.reduce, context.precision.compute)
        partial = jnp.matmul(x, self.kernel[...], preferred_element_type=wide)
        whole = psum(partial, context.axes.tensor).astype(x.dtype)
        return whole + self.bias[...].reshape(1, 1, 1, -1)


class FeedForward(nnx.Module):
    """LayerNorm, up, exact GELU, dropout, down; without residual."""

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
        self.up = ColumnLinear(channels, self.hidden)
        self.down = RowLinear(self.hidden, channels)

    def __call__(self, field: Field, context: Context) -> Field:
        x = jax.nn.gelu(self.up(self.norm(field.data)), approximate=False)
        return field.like(self.down(self._drop(x, field, context), context))

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
