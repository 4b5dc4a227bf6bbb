"""Attention between all points of sharded fields and additional memory tokens."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.vma import pvary
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.rows.layout import Field

# Memory tokens that all points attend to.
MemoryTokens = Float[Array, "token head dim"]


def full_attention(
    query: Field,
    key: Field,
    value: Field,
    memory_key: MemoryTokens,
    memory_value: MemoryTokens,
) -> Field:
    """Returns softmax(q k' / sqrt(dim)) v over all points and memory tokens.

    Each shard computes its own queries; keys and values of all rows are all-gathered.
    The softmax is in float32 or wider.

    Args:
        query, key, value: fields (batch, lat, lon, head, dim) on the same layout.
        memory_key, memory_value: (token, head, dim), of the memory tokens.
    """
    q = query.data
    wide = jnp.promote_types(q.dtype, jnp.float32)

    def with_memory(memory: Array, field: Field) -> Array:
        tokens = jnp.broadcast_to(memory[None], (len(q), *memory.shape))
        return jnp.concatenate(
            [tokens, gather_rows(field).reshape(len(q), -1, *q.shape[3:])], 1
        )

    keys, values = with_memory(memory_key, key), with_memory(memory_value, value)
    logits = jnp.einsum("byxhd,bnhd->byxhn", q, keys, preferred_element_type=wide)
    weights = jax.nn.softmax(logits * q.shape[-1] ** -0.5, -1).astype(q.dtype)
    return query.like(jnp.einsum("byxhn,bnhd->byxhd", weights, values))


def linear_attention(
    query: Field,
    key: Field,
    value: Field,
    memory_key: MemoryTokens,
    memory_value: MemoryTokens,
) -> Field:
    """Returns softmax_d(q) / sqrt(dim) times the matrix softmax_n(k)' v.

    The softmax of the keys is over all points n and memory tokens, that of a query over
    its channels d (Shen et al., 2021, arXiv 1812.01243). One `pmax` and one `psum`
    combine the shards.

    Args:
        query, key, value: fields (batch, lat, lon, head, dim) on the same layout.
        memory_key, memory_value: (token, head, dim), of the memory tokens.
    """
    q, layout = query.data, query.layout
    wide = jnp.promote_types(q.dtype, jnp.float32)
    k, v = key.data.astype(wide), value.data.astype(wide)
    memory, other = memory_key.astype(wide), memory_value.astype(wide)
    if layout.has_padding:
        mask = layout.real_rows()[None, :, None, None, None]
        k = jnp.where(mask, k, -jnp.inf)
    # The maximum keeps exponentials finite and cancels in the quotient, and with it in
    # the gradient.
    largest = jnp.maximum(k.max((1, 2)), memory.max(0)[None])
    largest = lax.stop_gradient(largest)
    if layout.axis is not None:
        largest = lax.pmax(largest, layout.axis)
    raised = jnp.exp(k - largest[:, None, None])
    matrix = jnp.einsum("byxhd,byxhe->bhde", raised, v, precision="highest")
    total = raised.sum((1, 2))
    if layout.axis is not None:
        matrix, total = psum(
            (pvary(matrix, (layout.axis,)), pvary(total, (layout.axis,))), layout.axis
        )
    # After the sum over shards, all of which have all memory tokens: they count once.
    raised = jnp.exp(memory[None] - largest[:, None])
    matrix = matrix + jnp.einsum("bnhd,nhe->bhde", raised, other, precision="highest")
    matrix = matrix / (total + raised.sum(1))[..., None]
    weights = jax.nn.softmax(q.astype(wide), -1) * q.shape[-1] ** -0.5
    return query.like(jnp.einsum("byxhd,bhde->byxhe", weights, matrix).astype(q.dtype))


def split_heads(field: Field, num: int, heads: int) -> tuple[Field, ...]:
    """Splits channels (num head dim) into `num` fields (batch, lat, lon, head, dim).

    Args:
        field: (batch, lat, lon, channel).
        num: number of fields.
        heads: number of heads.
    """
    x = field.data
    x = x.reshape(*x.shape[:-1], num, heads, -1)
    return tuple(field.like(x[..., i, :, :]) for i in range(num))


def merge_heads(field: Field) -> Field:
    """Merges heads (batch, lat, lon, head, dim) into channels (head dim)."""
    x = field.data
    return replace(field, data=x.reshape(*x.shape[:3], -1))
