"""Sub-pixel rearrangement."""

from __future__ import annotations

from jaxtyping import Array, Float


def pixel_shuffle(
    x: Float[Array, "batch height width channels"], scale: int
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Channels to space, as torch.nn.PixelShuffle.

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
