"""Blocks of the graph model: norms over all nodes, attention along edges, gates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import of_call, parameter
from credit_jax.ops.dense import add_bias
from credit_jax.ops.random import drop, keep_mask
from credit_jax.parallel.compiler import ATTENTION, NORM
from credit_jax.parallel.domain.edges import ShardEdges, edge_attention
from credit_jax.parallel.domain.norm import num_points
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.layout import Field

EPSILON = 1e-5

GATES = ("z_x", "z_h", "r_x", "r_h", "h_x", "h_h")


class NodeNorm(nnx.Module):
    """(x - mean) / (deviation + epsilon) over all nodes, for each sample and channel.

    Scale and bias exist but are not used, as in CREDIT.
    """

    def __init__(self, channels: int) -> None:
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, field: Field) -> Field:
        x, axis = field.data, field.layout.axis
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        axes, count = ((axis,) if axis else ()), num_points(field)

        def mean(values: Array) -> Array:
            total = field_sum(field.like(values), (1, 2), axes, keepdims=True)
            return total / count

        centered = wide - mean(wide)
        deviation = jnp.sqrt(mean(centered * centered))
        return field.like((centered / (deviation + EPSILON)).astype(x.dtype))


class EdgeEmbedding(nnx.Module):
    """A linear layer on the attributes of edges, and a norm over all edges."""

    def __init__(self, channels: int) -> None:
        self.linear = Linear(3, channels)
        self.norm = NodeNorm(channels)

    def __call__(
        self, attributes: Float[Array, "edge 3"], context: Context, *, edges: ShardEdges
    ) -> Float[Array, "edge channel"]:
        x = self.linear(attributes, context)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centered = wide - edges.mean(wide)[None]
        deviation = jnp.sqrt(edges.mean(centered * centered))
        return (centered / (deviation + EPSILON)[None]).astype(x.dtype)


class Gates(nnx.Module):
    """The linear layers of the gates, which are shared by all blocks."""

    def __init__(self, channels: int, num_blocks: int) -> None:
        for name in GATES:
            # The first block has no state, so it does not call the "_h" layers.
            calls = num_blocks if name.endswith("_x") else num_blocks - 1
            setattr(self, name, Linear(channels, channels, calls=calls))

    def __call__(self, context: Context) -> dict[str, tuple[Array, Array]]:
        del context
        layers: dict[str, Any] = {name: getattr(self, name) for name in GATES}
        return {n: (gate.kernel[...], gate.bias[...]) for n, gate in layers.items()}


class GraphAttention(nnx.Module):
    """PyTorch Geometric's TransformerConv, without spectral norm."""

    def __init__(
        self, channels: int, dim_head: int, *, dropout: float, attributes: bool
    ) -> None:
        self.heads, self.dropout = channels // dim_head, dropout
        init, shape, dims = torch_uniform(channels), (channels,) * 2, ("embed", "embed")
        self.names = ("key", "query", "value", "skip")
        for name in self.names:
            setattr(self, name, parameter(init, shape, dims))
            setattr(self, f"{name}_bias", parameter(init, (channels,), ("embed",)))
        self.edge = parameter(init, shape, dims) if attributes else None

    @jax.named_scope(ATTENTION)
    def __call__(
        self, field: Field, along: Array | None, edges: ShardEdges, context: Context
    ) -> Field:
        x, projections = field.data, {}
        for name in self.names:
            kernel, bias = getattr(self, name), getattr(self, f"{name}_bias")
            projections[name] = add_bias(x @ kernel[...], bias[...])
        skip = projections.pop("skip")
        split = {
            name: field.like(value.reshape(*x.shape[:3], self.heads, -1))
            for name, value in projections.items()
        }
        if along is not None and self.edge is not None:
            along = (along @ self.edge[...]).reshape(len(along), self.heads, -1)

        def dropped(weights: Array) -> Array:
            # Dropout with a mask by global sample, edge and head.
            if context.key is None or self.dropout == 0.0:
                return weights
            high = context.samples(len(weights))[:, None, None]
            number = jnp.maximum(edges.local(edges.number), 0)
            low = number[:, None] * self.heads + jnp.arange(self.heads)[None]
            keep = keep_mask(context.key, high, low[None], self.dropout)
            return drop(weights, keep, self.dropout)

        seen = edge_attention(
            split["query"], split["key"], split["value"], along, edges, dropped
        )
        return field.like(seen.data.reshape(x.shape) + skip)


class GraphBlock(nnx.Module):
    """Attention, two linear layers, a residual sum, a norm, and gates.

    The carry has the field "x", which after the first block is the state of the gates,
    the parameters "gates", and the edge embeddings "along".
    """

    def __init__(
        self, channels: int, dim_head: int, *, dropout: float, attributes: bool
    ) -> None:
        self.attention = GraphAttention(
            channels, dim_head, dropout=dropout, attributes=attributes
        )
        self.inner = Linear(channels, channels)
        self.outer = Linear(channels, channels)
        self.inner_norm = NodeNorm(channels)
        self.norm = NodeNorm(channels)

    def __call__(
        self, carry: dict[str, Any], context: Context, *, edges: ShardEdges
    ) -> dict[str, Any]:
        state: Field = carry["x"]
        x = self.attention(state, carry["along"], edges, context)
        x = x.like(self.inner(jax.nn.relu(x.data), context))
        x = self.inner_norm(x)
        x = x.like(self.outer(jax.nn.relu(x.data), context) + state.data)
        x = self.norm(x).data
        # The new state: tanh(W x) in the first block, which has no state yet. In later
        # blocks it is (1 - z) h + z tanh(W (r h)).
        gates = carry["gates"]
        block = jnp.asarray(context.block)
        first = block == 0

        def linear(name: str, x: Array) -> Array:
            kernel, bias = gates[name]
            # Layers of the state are called from the second block on.
            call = block if name.endswith("_x") else jnp.maximum(block - 1, 0)
            return add_bias(x @ of_call(kernel, 2, call), bias)

        z = jax.nn.sigmoid(linear("z_x", x) + linear("z_h", state.data))
        r = jax.nn.sigmoid(linear("r_x", x) + linear("r_h", state.data))
        later = (1 - z) * state.data + z * jnp.tanh(linear("h_h", r * state.data))
        gated = jnp.where(first, jnp.tanh(linear("h_x", x)), later)
        return {**carry, "x": state.like(gated)}
