"""Patch embeddings: linear maps from each patch of a field to one vector."""

from __future__ import annotations

from jaxtyping import Array, Float

from credit_jax.ops.conv import conv2d
from credit_jax.ops.convolution3d import conv3d


def patch_embed2d(
    x: Float[Array, "batch lat lon channel_in"],
    kernel: Float[Array, "patch_h patch_w channel_in embed"],
    bias: Float[Array, " embed"] | None = None,
) -> Float[Array, "batch patches_h patches_w embed"]:
    """Maps each patch linearly to a vector: the projection of CREDIT's Swin PatchEmbed.

    A convolution whose stride equals its kernel size. Rows and columns at the end that
    do not fill a patch are ignored, as in torch. The optional norm of PatchEmbed is
    `credit_jax.ops.norm.layer_norm`.

    Args:
        x: (batch, lat, lon, channel_in).
        kernel: (patch_h, patch_w, channel_in, embed).
        bias: (embed,), or None.
    """
    y = conv2d(x, kernel, stride=(kernel.shape[0], kernel.shape[1]))
    return y if bias is None else y + bias.reshape(1, 1, 1, -1)


def patch_embed3d(
    x: Float[Array, "batch time lat lon channel_in"],
    kernel: Float[Array, "patch_t patch_h patch_w channel_in embed"],
    bias: Float[Array, " embed"] | None = None,
) -> Float[Array, "batch patches_t patches_h patches_w embed"]:
    """Maps each cube linearly to a vector: the projection of CREDIT's CubeEmbedding.

    Points at the end that do not fill a cube are ignored, as in torch. The optional
    norm of CubeEmbedding (FuXi) is `credit_jax.ops.norm.layer_norm`.

    Args:
        x: (batch, time or level, lat, lon, channel_in).
        kernel: (patch_t, patch_h, patch_w, channel_in, embed).
        bias: (embed,), or None.
    """
    patch = (kernel.shape[0], kernel.shape[1], kernel.shape[2])
    y = conv3d(x, kernel, stride=patch)
    return y if bias is None else y + bias.reshape(1, 1, 1, 1, -1)
