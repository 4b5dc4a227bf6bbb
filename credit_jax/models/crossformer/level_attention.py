"""Attention over the levels of each point, and the bias of each level."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.parallel.domain.pool import avg_pool2d_field
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.params.initializers import (
    Initializer,
    constant,
    torch_uniform,
)
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import ATTENTION


class LevelAttention(nnx.Module):
    """CREDIT's ColumnAttention: tokens are levels, their channels the variables.

    Its result is added to the field. The linear layers have no bias and no spectral
    norm.

    Args of the constructor:
        variables: number of variables on levels, a multiple of `heads`.
        levels: number of levels.
        heads: number of heads.
        stride: the input is pooled over stride x stride points, and the result is
            interpolated back to the grid.
    """

    def __init__(self, variables: int, levels: int, heads: int, stride: int) -> None:
        self.variables, self.levels, self.stride = variables, levels, stride
        size = variables // heads
        self.norm = LayerNorm(variables)
        self.to_qkv = parameter(
            Initializer("uniform", math.sqrt(6.0 / (4 * variables))),
            (variables, 3, heads, size),
            ("embed", None, None, "head_dim"),
        )
        init = torch_uniform(variables)
        self.to_out = parameter(init, (variables, variables), ("embed", "embed"))
        self.proj = parameter(init, (variables, variables), ("embed", "embed"))

    def __call__(self, field: Field, context: Context) -> Field:
        """Adds the attention to a field with channels (variable * level)."""
        seen, stride = field, (self.stride, self.stride)
        if self.stride > 1:
            seen = avg_pool2d_field(field, stride, stride=stride)

        def attend(data: Array) -> Array:
            return self._attend(data, context)

        change = seen.like(context.remat.attention(attend)(seen.data))
        if self.stride > 1:
            size = field.layout.size, field.data.shape[2]
            change = resize_bilinear(change, size, out=field.layout)
        return field.like(field.data + change.data)

    @jax.named_scope(ATTENTION)
    def _attend(
        self, x: Float[Array, "batch rows lon channel"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        lead = x.shape[:-1]
        tokens = x.reshape(*lead, self.variables, self.levels)
        tokens = self.norm(jnp.swapaxes(tokens, -1, -2))
        q, k, v = jnp.moveaxis(dense(tokens, self.to_qkv[...]), -3, 0)
        logits = jnp.einsum(
            "...qhd,...khd->...hqk",
            q * q.shape[-1] ** -0.5,
            k,
            preferred_element_type=context.precision.wide,
        )
        weights = jax.nn.softmax(logits, -1).astype(v.dtype)
        mixed = jnp.einsum("...hqk,...khd->...qhd", weights, v)
        out = dense(mixed.reshape(*tokens.shape), self.to_out[...])
        return jnp.swapaxes(dense(out, self.proj[...]), -1, -2).reshape(x.shape)


class BiasedLevelAttention(nnx.Module):
    """Adds a bias for every variable and level, then applies `LevelAttention`.

    Args of the constructor:
        variables, levels, heads, stride: as for `LevelAttention`.
    """

    def __init__(self, variables: int, levels: int, heads: int, stride: int) -> None:
        channels = variables * levels
        self.bias = parameter(constant(0.0), (channels,), ("embed",))
        self.attention = LevelAttention(variables, levels, heads, stride)

    def __call__(
        self, field: Field, context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        data = field.data + self.bias[...][None, None, None]
        return self.attention(field.like(data), context).data
