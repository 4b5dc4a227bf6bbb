"""The frames of an input, folded into the channels of one field."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Array, Float

# "channel": all frames, channel * time. "mean": the mean of the first two frames.
FrameFold = Literal["channel", "mean"]


def fold_frames(
    x: Float[Array, "batch channel time rows lon"], fold: FrameFold
) -> Float[Array, "batch rows lon folded"]:
    """Folds the frames of x into its channels, NHWC.

    Args:
        x: frames of a field.
        fold: see `FrameFold`. "mean" is torch's avg_pool3d with a kernel of two frames:
            the third of three frames is dropped; one frame is taken as it is.
    """
    if fold == "mean":
        x = x[:, :, :2].mean(2, keepdims=True)
    batch, channels, time, rows, lon = x.shape
    return x.transpose(0, 3, 4, 1, 2).reshape(batch, rows, lon, channels * time)
