"""Networks for the continuous position bias of Swin Transformer V2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dense import add_bias
from credit_jax.ops.padding import IntPair
from credit_jax.ops.random import drop, keep_mask
from credit_jax.ops.window_attention import (
    pairs_of_offsets,
    scaled_offsets,
    token_offsets,
)
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.scopes import POSITION_BIAS

# Upper limit of the bias of `OffsetBias`.
LARGEST = 16.0


class OffsetBias(nnx.Module):
    """timm's position bias: 16 sigmoid of a network over all offsets.

    Args of the constructor:
        heads: number of heads, sharded over tp.
        window: rows and columns of a window.
        hidden: number of hidden units of the network.
    """

    def __init__(self, heads: int, window: IntPair, *, hidden: int = 512) -> None:
        self.window = window
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
    """CREDIT's position bias (Swin V2 CR): a network over offsets of pairs of tokens.

    In training it has dropout independently of the rates of the config.

    Args of the constructor:
        heads: number of heads, sharded over tp.
        window: rows and columns of a window.
        hidden: number of hidden units of the network.
        dropout: dropout rate of the hidden units.
    """

    def __init__(
        self, heads: int, window: IntPair, *, hidden: int = 384, dropout: float = 0.125
    ) -> None:
        self.window, self.dropout = window, dropout
        self.hidden = Linear(2, hidden)
        init = torch_uniform(hidden)
        self.out = parameter(init, (hidden, heads), ("embed", "heads"), matrix_out=(1,))
        self.bias = parameter(init, (heads,), ("heads",))

    @jax.named_scope(POSITION_BIAS)
    def __call__(self, context: Context) -> Float[Array, "heads tokens tokens"]:
        """Returns the bias of every pair of tokens of a window."""
        offsets = token_offsets(self.window).astype(np.float32)
        logs = np.sign(offsets) * np.log(1 + np.abs(offsets))
        x = jnp.asarray(logs.reshape(-1, 2), self.hidden.kernel[...].dtype)
        x = jax.nn.relu(self.hidden(x))
        if context.key is not None:
            pair, unit = map(jnp.arange, x.shape)
            keep = keep_mask(context.key, pair[:, None], unit[None], self.dropout)
            x = drop(x, keep, self.dropout)
        bias = add_bias(dense(x, self.out[...]), self.bias[...])
        return bias.T.reshape(-1, *offsets.shape[:2])
