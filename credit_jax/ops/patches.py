"""What puts pixels and patches back."""

from __future__ import annotations

from jaxtyping import Array, Float

from credit_jax.ops.space_to_depth import IntPair


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
