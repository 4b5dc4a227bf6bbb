"""Conversion between the arrays of a batch and fields, with padding and cropping."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from credit_jax.models.common.frames import FrameFold, fold_frames
from credit_jax.models.common.padded_config import CorrectedConfig, PaddedConfig
from credit_jax.models.common.padding import PaddingConfig
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Context
from credit_jax.parallel.domain.padding import crop_globe, pad_globe
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.parallel.scopes import INPUT, OUTPUT


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
