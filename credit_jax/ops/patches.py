"""Patches: their embeddings by a linear map, and what puts pixels and patches back."""

from __future__ import annotations

from jaxtyping import Array, Float

from credit_jax.ops.conv import conv2d, conv3d
from credit_jax.ops.space_to_depth import IntPair


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


def pixel_shuffle(
    x: Float[Array, "batch height width channels"], scale: int
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Moves channels to space, as torch.nn.PixelShuffle.

    out[b, h * r + i, w * r + j, c] = x[b, h, w, c * r * r + i * r + j]

    Args:
        x: (batch, height, width, channel_out * scale**2).
        scale: r, the upscale factor.
    """
    batch, height, width, channels = x.shape
    channel_out = channels // scale**2
    x = x.reshape(batch, height, width, channel_out, scale, scale)
    x = x.transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, height * scale, width * scale, channel_out)


def unpatch(
    x: Float[Array, "batch height width channels"], patch: IntPair
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Rearranges the vector of each point to a patch, as the heads of FuXi and Swin do.

    out[b, h * p + i, w * q + j, c] = x[b, h, w, (i * q + j) * channel_out + c]

    Args:
        x: (batch, height, width, p * q * channel_out).
        patch: rows p and columns q.
    """
    batch, height, width, channels = x.shape
    p, q = patch
    x = x.reshape(batch, height, width, p, q, channels // (p * q))
    x = x.transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, height * p, width * q, channels // (p * q))
