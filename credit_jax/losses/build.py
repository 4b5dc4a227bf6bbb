"""The loss section of the configuration as one function inside `shard_map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import LossConfig
from credit_jax.fields import ChannelLayout, FieldContext, latitude_weights
from credit_jax.losses.base import Loss, Prediction, Scalar, Target
from credit_jax.losses.registry import choose_loss

WEIGHTED_VALIDATION_LOSS = "mae"


def build_loss(
    config: LossConfig,
    channels: Mapping[str, int] | None = None,
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    validation: bool = False,
) -> Loss:
    """The training or the validation loss.

    For an elementwise loss `l` the mean of `l(p, t) * w_lat * w_var` over samples,
    channels, times, rows and longitudes, exact on every mesh, in float32 or wider.

    Args:
        config: the `loss` section.
        channels: number of channels of each target variable, in channel order. A name
            may be a whole key ("ERA5/prognostic/3d/U"); its last part counts for
            `variable_weights`. Needed with `use_variable_weights` and by losses of
            single variables.
        latitude: (H,) degrees north of every row; needed with `use_latitude_weights`.
        validation: build `validation_loss` instead of `training_loss`.

    Returns:
        `(prediction, target, context) -> scalar`; local (b, C_out, T_out, rows, lon)
        arrays. The channels and weights of the section replace those of the context.

    Raises:
        ValueError: the section asks for something that is not there.

    A missing `validation_loss` is `mae` where there are weights, as in CREDIT, and else
    the training loss, where CREDIT raises KeyError.

    Differs from CREDIT: all target channels count. CREDIT's weighted loss counts a
    diagnostic variable with levels as one channel and leaves the last channels out.
    """
    loss = _chosen_loss(config, validation)
    settings: dict[str, Any] = {
        "row_weights": _row_weights(config, latitude),
        "channel_weights": _channel_weights(config, channels),
    }
    if channels is not None:
        settings["channels"] = ChannelLayout.of(channels)

    def total(prediction: Prediction, target: Target, context: FieldContext) -> Scalar:
        context = dataclasses.replace(context, **settings)
        return loss(_widened(prediction), _widened(target), context)

    return total


def build_channel_weights(
    weights: Mapping[str, Any], channels: Mapping[str, int]
) -> Float[np.ndarray, " channel"]:
    """`loss.variable_weights` for every target channel.

    Args:
        weights: for each variable one number, or one for each of its levels.
        channels: number of channels of each target variable, in channel order. A name
            may be a whole key ("ERA5/prognostic/3d/U"); its last part counts then.

    Returns:
        (C_out,) float32.

    Raises:
        ValueError: a variable has no weight, a wrong number of them, or is no target.

    Differs from CREDIT: weights are found by name, not by their order in the file, and
    one number for a variable with levels holds for all of them.
    """
    names = [key.rsplit("/", 1)[-1] for key in channels]
    missing = [name for name in names if name not in weights]
    unknown = [name for name in weights if name not in names]
    if missing or unknown:
        raise ValueError(
            f"loss.variable_weights: missing {missing}, not a target {unknown}; "
            f"the targets are {names}"
        )
    parts = [
        _per_level(name, weights[name], num)
        for name, num in zip(names, channels.values(), strict=True)
    ]
    return np.concatenate(parts).astype(np.float32)


def _per_level(name: str, weight: Any, num: int) -> np.ndarray:
    values = np.atleast_1d(np.asarray(weight, np.float64))
    if len(values) not in (1, num):
        raise ValueError(
            f"loss.variable_weights.{name}: got {len(values)} weights, expected 1 or "
            f"{num} (one for each level)"
        )
    return np.broadcast_to(values, (num,))


def _widened(field: Array) -> Array:
    return field.astype(jnp.promote_types(field.dtype, jnp.float32))


def _chosen_loss(config: LossConfig, validation: bool) -> Loss:
    if validation and config.validation_loss is not None:
        return choose_loss(
            config.validation_loss,
            config.validation_loss_parameters,
            "loss.validation_loss",
        )
    if validation and (config.use_latitude_weights or config.use_variable_weights):
        return choose_loss(WEIGHTED_VALIDATION_LOSS, {}, "loss.validation_loss")
    return choose_loss(
        config.training_loss, config.training_loss_parameters, "loss.training_loss"
    )


def _row_weights(config: LossConfig, latitude: np.ndarray | None) -> np.ndarray | None:
    if not config.use_latitude_weights:
        return None
    if latitude is None:
        raise ValueError(
            "loss.use_latitude_weights: true needs loss.latitude_weights, a file with "
            "a `latitude` coordinate"
        )
    return latitude_weights(latitude)


def _channel_weights(
    config: LossConfig, channels: Mapping[str, int] | None
) -> np.ndarray | None:
    if not config.use_variable_weights:
        return None
    if not config.variable_weights:
        raise ValueError(
            "loss.use_variable_weights: true needs loss.variable_weights, "
            "{variable: weight or one weight for each level}"
        )
    if channels is None:
        raise ValueError(
            "loss.use_variable_weights: true needs the target channels "
            "(`build_loss(config, channels)`)"
        )
    return build_channel_weights(config.variable_weights, channels)
