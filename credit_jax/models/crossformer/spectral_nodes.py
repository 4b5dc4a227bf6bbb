"""Global mixing of all points of a field through a few nodes."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.context import Context
from credit_jax.nn.layers import GroupNorm, Linear
from credit_jax.nn.parameters import parameter
from credit_jax.ops.gelu import gelu
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.params.initializers import Initializer
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import in_rows

EXPANSION = 2


class SpectralNodes(nnx.Module):
    """CREDIT's SpectralGNNBottleneck: points to nodes, a network at each node, back.

    Each shard sums over its own rows, and a `psum` of (batch, node, channel) sums over
    shards. The weights depend on the grid, as they have a value for every point.

    Args of the constructor:
        channels: number of channels of the field.
        height, width: number of latitudes and of longitudes of the field.
        nodes: number of nodes.
    """

    tp_plan = (("up", "down"),)

    def __init__(self, channels: int, height: int, width: int, nodes: int) -> None:
        points = height * width
        self.norm = GroupNorm(1, channels)
        self.gather = parameter(
            Initializer("normal", points**-0.5), (nodes, height, width), (None,) * 3
        )
        self.scatter = parameter(
            Initializer("normal", nodes**-0.5), (height, width, nodes), (None,) * 3
        )
        self.up = Linear(channels, EXPANSION * channels)
        self.down = Linear(EXPANSION * channels, channels)

    def __call__(self, field: Field, context: Context) -> Field:
        field = in_rows(field)
        normal, layout = self.norm(field).data, field.layout
        nodes = self._gathered(field.like(normal), context)
        nodes = self.down(gelu(self.up(nodes, context)), context)
        weights = layout.local(self.scatter[...])
        change = jnp.einsum("bkc,rwk->brwc", nodes, weights)
        return field.like(field.data + change.astype(field.data.dtype))

    def _gathered(
        self, field: Field, context: Context
    ) -> Float[Array, "batch node channel"]:
        """Returns the nodes, equal on all shards; padding rows have weight 0."""
        weights = field.layout.local(jnp.moveaxis(self.gather[...], 0, -1))
        part = jnp.einsum(
            "brwc,rwk->bkc",
            field.data,
            weights,
            preferred_element_type=context.precision.wide,
        )
        return psum(part, field.layout.axis).astype(field.data.dtype)
