"""Normalisation with statistics over the rows of all shards."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.parallel.collectives import psum, vary
from credit_jax.parallel.layouts import Field


def group_norm(
    field: Field,
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Field:
    """torch.nn.GroupNorm: statistics over lat, lon and the channels of a group.

    Filler rows count for nothing. Mean and centred variance are each one local sum and
    one `psum`, in float32 or wider.

    Args:
        field: (batch, lat, lon, channel).
        scale, bias: (channel,).
        num_groups: divides the number of channels.
        epsilon: inside the root.
    """
    x, layout = field.data, field.layout
    batch, height, width, channels = x.shape
    per_group = channels // num_groups
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide.reshape(batch, height, width, num_groups, per_group)
    spatial = height * width // layout.length * layout.size
    mask = field.mask()[..., None] if layout.has_filler else None

    def mean(values: Array) -> Array:
        if mask is not None:
            values = jnp.where(mask, values, jnp.zeros((), values.dtype))
        local = values.sum((1, 2, 4), keepdims=True)
        if layout.axis:
            local = psum(vary(local, (layout.axis,)), layout.axis)
        return local / (spatial * per_group)

    centred = wide - mean(wide)
    variance = mean(centred * centred)
    normal = centred * lax.rsqrt(variance + epsilon)
    normal = normal.reshape(x.shape).astype(x.dtype)
    return field.like(normal * scale.reshape(1, 1, 1, -1) + bias.reshape(1, 1, 1, -1))
