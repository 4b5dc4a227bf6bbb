"""Patch embeddings of sharded fields."""

from __future__ import annotations

from jaxtyping import Array, Float

from credit_jax.parallel.domain.conv import conv2d_field, conv3d_field
from credit_jax.parallel.rows.layout import Field, Layout


def patch_embed2d_field(
    field: Field,
    kernel: Float[Array, "patch_h patch_w channel_in embed"],
    bias: Float[Array, " embed"] | None = None,
    *,
    out: Layout | None = None,
) -> Field:
    """`ops.patch_embed.patch_embed2d` on a field; each patch is on a single shard.

    No row moves if the rows of every shard are complete patches. Rows at the end of the
    field that do not fill a patch are ignored.

    Args:
        field: (batch, lat, lon, channel_in), sharded along dim 1 or 2.
        kernel: (patch_h, patch_w, channel_in, embed).
        bias: (embed,), or None.
        out: layout of the rows of patches; None for equal blocks.
    """
    patch = (kernel.shape[0], kernel.shape[1])
    patches = conv2d_field(field, kernel, stride=patch, out=out)
    return _add(patches, bias)


def patch_embed3d_field(
    field: Field,
    kernel: Float[Array, "patch_t patch_h patch_w channel_in embed"],
    bias: Float[Array, " embed"] | None = None,
    *,
    out: Layout | None = None,
) -> Field:
    """`ops.patch_embed.patch_embed3d` on a field; each cube is on a single shard.

    Args:
        field: (batch, time or level, lat, lon, channel_in), sharded along dim 1, 2 or
            3.
        kernel: (patch_t, patch_h, patch_w, channel_in, embed).
        bias: (embed,), or None.
        out: layout of the rows of patches; None for equal blocks.
    """
    patch = (kernel.shape[0], kernel.shape[1], kernel.shape[2])
    patches = conv3d_field(field, kernel, stride=patch, out=out)
    return _add(patches, bias)


def _add(field: Field, bias: Array | None) -> Field:
    if bias is None:
        return field
    lead = (1,) * (field.data.ndim - 1)
    return field.like(field.data + bias.reshape(*lead, -1))
