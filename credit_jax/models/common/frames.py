"""Folding of the frames of an input into channels."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Array, Float

# "channel": all frames, channel * time. "mean": the mean of the first two frames.
FrameFold = Literal["channel", "mean"]


def fold_frames(
    x: Float[Array, "batch channel time rows lon"], fold: FrameFold
) -> Float[Array, "batch rows lon folded"]:
    """Folds the frames of x into channels, NHWC.

    Args:
        x: (batch, channel, time, rows, lon).
        fold: see `FrameFold`. "mean" is torch's avg_pool3d with a kernel of two frames:
            a third frame is ignored, and a single frame is used unchanged.
    """
    if fold == "mean":
        x = x[:, :, :2].mean(2, keepdims=True)
    batch, channels, time, rows, lon = x.shape
    return x.transpose(0, 3, 4, 1, 2).reshape(batch, rows, lon, channels * time)


def mean_problems(frames: int) -> list[str]:
    """Returns errors of a number of frames for the fold "mean"."""
    if frames <= 3:
        return []
    return [
        f"model.frames is {frames}; expected 1 to 3: the model takes the mean of two "
        "frames, and CREDIT fails where a third and a fourth make another mean"
    ]


def unseen_frames(frames: int) -> dict[str, str]:
    """Returns a note on the key `frames` if the fold "mean" ignores a third frame."""
    if frames != 3:
        return {}
    return {
        "frames": "3: the model takes the mean of the first two frames and does not "
        "see the last, as in CREDIT"
    }
