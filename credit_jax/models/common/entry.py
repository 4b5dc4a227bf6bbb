"""Conversion between the arrays of a batch and fields, with padding and cropping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import jax
from jaxtyping import Array, Float

from credit_jax.models.common.config import (
    CorrectedConfig,
    PaddedConfig,
    PaddingConfig,
)
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Context
from credit_jax.parallel.domain.padding import crop_globe, pad_globe
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.parallel.scopes import INPUT, OUTPUT

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


def mean_problems(frames: int) -> Iterator[str]:
    """Yields an error of a number of frames for the fold "mean"."""
    if frames > 3:
        yield (
            f"model.frames is {frames}; expected 1 to 3: the model takes the mean of "
            "two frames, and CREDIT fails where a third and a fourth make another mean"
        )


def unseen_frames(frames: int) -> dict[str, str]:
    """Returns a note on the key `frames` if the fold "mean" ignores a third frame."""
    why = (
        "3: the model takes the mean of the first two frames and does not see the last"
    )
    return {"frames": f"{why}, as in CREDIT"} if frames == 3 else {}


@jax.named_scope(INPUT)
def enter(
    x: Float[Array, "batch channel time rows lon"],
    height: int,
    context: Context,
    padding: PaddingConfig | None = None,
    fold: FrameFold = "channel",
) -> Field:
    """Folds frames into channels, converts to an NHWC field, and pads it.

    Args:
        x: (batch, channel, time, rows, lon), local samples and rows.
        height: global number of rows of `x`.
        context: gives the shards.
        padding: an active padding, or None.
        fold: how frames become channels, see `FrameFold`.
    """
    field = Field(fold_frames(x, fold), context.rows(height))
    if padding is None:
        return field
    return pad_globe(field, mode=padding.mode, lat=padding.pad_lat, lon=padding.pad_lon)


@jax.named_scope(OUTPUT)
def leave(
    field: Field, config: PaddedConfig, *, interpolate: bool
) -> Float[Array, "batch channel_out time_out rows lon"]:
    """Crops the padding, interpolates to the output grid, and unfolds frames.

    Args:
        field: (batch, lat, lon, channel_out * time_out), output of the network.
        config: config of the model.
        interpolate: whether to interpolate to the output grid.

    Returns:
        (batch, channel_out, time_out, rows, lon), rows in equal blocks.
    """
    pad, output = config.padding, config.output
    if pad is not None:
        field = crop_globe(field, lat=pad.pad_lat, lon=pad.pad_lon)
    if interpolate:
        field = resize_bilinear(field, (output.height, output.width))
    field = reshard(field, field.layout.to_blocks())
    batch, rows, lon, _ = field.data.shape
    x = field.data.reshape(batch, rows, lon, output.channels, output.frames)
    return x.transpose(0, 3, 4, 1, 2)


def correct(
    config: CorrectedConfig,
    x: Float[Array, "batch channel time rows lon"],
    y: Float[Array, "batch channel_out time_out rows lon"],
    context: Context,
) -> Float[Array, "batch channel_out time_out rows lon"]:
    """Applies the corrections of `gen1_post_conf` to a prediction, if active.

    Args:
        config: config of the model.
        x: (batch, channel, time, rows, lon), input of the model.
        y: (batch, channel_out, time_out, rows, lon), its prediction.
        context: gives the shards.
    """
    conf = config.gen1_post_conf
    if conf is None or not conf.activate:
        return y
    reducer = FieldReducer(context.rows(config.output.height, dim=3), context.axes)
    return conf.fixers(x, y, FieldContext(reducer))
