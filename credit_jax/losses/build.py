"""The loss section of the configuration as one function inside `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import LossConfig
from credit_jax.losses.elementwise import Elementwise, elementwise_loss
from credit_jax.losses.latitude import latitude_weights
from credit_jax.parallel.reductions import FieldReducer

Fields = Float[Array, "batch channel time rows lon"]
Loss = Callable[[Array, Array, FieldReducer], Array]

WEIGHTED_VALIDATION_LOSS = "mae"


def build_loss(
    config: LossConfig,
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    channel_weights: Float[np.ndarray, " channel"] | None = None,
    validation: bool = False,
) -> Loss:
    """The training or the validation loss.

    The mean of `l(p, t) * w_lat * w_var` over samples, channels, times, rows and
    longitudes, exact on every mesh, in float32.

    Args:
        config: the `loss` section.
        latitude: (H,) degrees north of every row; needed with `use_latitude_weights`.
        channel_weights: (C_out,) of `build_channel_weights`; needed with
            `use_variable_weights`.
        validation: build `validation_loss` instead of `training_loss`.

    Returns:
        `(pred, target, reducer) -> scalar`; local (b, C_out, T_out, rows, lon) arrays.

    Raises:
        ValueError: the section asks for something that is not there.

    A missing `validation_loss` is `mae` where there are weights, as in CREDIT, and else
    the training loss, where CREDIT raises KeyError.

    Differs from CREDIT: all target channels count. CREDIT's weighted loss counts a
    diagnostic variable with levels as one channel and leaves the last channels out.
    """
    loss = _choose_elementwise(config, validation)
    rows = _row_weights(config, latitude)
    channels = _checked_channel_weights(config, channel_weights)

    def total(pred: Fields, target: Fields, reducer: FieldReducer) -> Array:
        values = loss(pred.astype(jnp.float32), target.astype(jnp.float32))
        if channels is not None:
            values = values * jnp.asarray(channels).reshape(1, -1, 1, 1, 1)
        return reducer.mean(values, rows)

    return total


def build_channel_weights(
    weights: Mapping[str, Any], channels: Mapping[str, int]
) -> Float[np.ndarray, " channel"]:
    """`loss.variable_weights` spread over the target channels.

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
        _spread(name, weights[name], num)
        for name, num in zip(names, channels.values(), strict=True)
    ]
    return np.concatenate(parts).astype(np.float32)


def _spread(name: str, weight: Any, num: int) -> np.ndarray:
    values = np.atleast_1d(np.asarray(weight, np.float64))
    if len(values) not in (1, num):
        raise ValueError(
            f"loss.variable_weights.{name}: got {len(values)} weights, expected 1 or "
            f"{num} (one for each level)"
        )
    return np.broadcast_to(values, (num,))


def _choose_elementwise(config: LossConfig, validation: bool) -> Elementwise:
    if validation and config.validation_loss is not None:
        return elementwise_loss(
            config.validation_loss,
            config.validation_loss_parameters or {},
            "loss.validation_loss",
        )
    if validation and (config.use_latitude_weights or config.use_variable_weights):
        return elementwise_loss(WEIGHTED_VALIDATION_LOSS, {}, "loss.validation_loss")
    return elementwise_loss(
        config.training_loss,
        config.training_loss_parameters or {},
        "loss.training_loss",
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


def _checked_channel_weights(
    config: LossConfig, weights: np.ndarray | None
) -> np.ndarray | None:
    if not config.use_variable_weights:
        return None
    if weights is None:
        raise ValueError(
            "loss.use_variable_weights: true needs loss.variable_weights, "
            "{variable: weight or one weight for each level}"
        )
    return weights
