"""Builds the `loss` section of a config as one function inside `shard_map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config import parse
from credit_jax.config.loss import BaseLossArgs, LossConfig
from credit_jax.losses.base import Loss, Scalar
from credit_jax.losses.by_variable import build_base_loss
from credit_jax.losses.registry import LOSSES, choose_loss
from credit_jax.named_fields import (
    ChannelLayout,
    FieldContext,
    FieldTree,
    latitude_weights,
    widened,
)

DEFAULT_VALIDATION_LOSS = "mae"


def build_loss(
    config: LossConfig,
    channels: Mapping[str, int] | None = None,
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    variances: Mapping[str, float] | None = None,
    levels: Mapping[str, Sequence[float] | None] | None = None,
    tendencies: Mapping[str, Sequence[float]] | None = None,
    num_members: int | None = None,
    validation: bool = False,
) -> Loss:
    """Builds the training or the validation loss.

    An elementwise loss `l` is the mean of `l(p, t) * w_lat * w_var` over samples,
    channels, times, rows and longitudes, in float32 or wider, and has the same value on
    every mesh. `w_var` is the product of `variable_weights`, `level_weights` and
    `tendency_weights`. For `type: base` see `build_base_loss`.

    Without `validation_loss`, the validation loss is `mae` if there are weights, as in
    CREDIT, or if the training loss is `ring-crps`, whose ranks validate on different
    samples; else it is the training loss, where CREDIT raises KeyError. With weights
    and `training_loss: KCRPS`, validation uses KCRPS and ignores `validation_loss`, as
    in CREDIT.

    Args:
        config: the `loss` section.
        channels: number of channels of each target variable, in channel order. A name
            may be a whole key ("ERA5/prognostic/3d/U"), of which `variable_weights`
            names the last part. Needed with `use_variable_weights`, with `type: base`
            and by losses of single variables.
        latitude: (lat,) degrees north; needed with `use_latitude_weights`, and by
            losses of spherical harmonics.
        variances: variances of the targets by key, see `fields.target_variances`;
            needed with `var_weighting: inverse_variance`.
        levels: values of the levels of each target variable by key, None for variables
            without levels; needed with `level_weights`.
        tendencies: variances of the tendencies of the channels of target variables by
            key, empty for none; needed with `tendency_weights`.
        num_members: ensemble members of a sample, compared with the number that the
            loss needs; None skips the comparison.
        validation: whether to build the validation loss instead of the training loss.

    Returns:
        `(tree, context) -> scalar`; the tree has the local (batch, channel, time, rows,
        lon) arrays "y_pred" and "y" and, for `type: base`, the named fields
        "y_processed" and "y_target_processed". The channels and weights of the section
        replace those of the context.

    Raises:
        ValueError: an unknown loss or parameter, too few members, or an argument that
            the section needs is missing.

    Differs from CREDIT: all target channels have weights. CREDIT's weighted loss counts
    a diagnostic variable with levels as one channel and drops the last channels; for a
    model without `levels` it uses `frames` instead.
    `spectral`, `power`, `covmse` and `ring-crps` accept weights, with which CREDIT's
    cannot be called.

    >>> options = ["loss.use_latitude_weights=false"]
    >>> config = credit_jax.load_config("RUN/model.yml", options)
    >>> loss = credit_jax.build_loss(config.loss)
    >>> step = credit_jax.make_train_step(model, optax.sgd(0.1), loss)
    """
    row_weights = _row_weights(config, latitude)
    by_level = _level_weights(config, channels, levels)
    if config.tendency_weights is not None:
        by_level = _with_tendencies(by_level, channels, tendencies)
    if config.is_base:
        args = parse(BaseLossArgs, config.args, "loss.args")
        return build_base_loss(
            args,
            _needed(channels, "type: base"),
            row_weights=row_weights,
            variances=variances,
            level_weights=by_level,
            validation=validation,
        )
    loss = _chosen_loss(config, validation, num_members)
    terms = [] if validation else _spectral_terms(config)
    settings: dict[str, Any] = {
        "row_weights": row_weights,
        "latitude": latitude,
        "channel_weights": _channel_weights(config, channels, by_level),
    }
    if channels is not None:
        settings["channels"] = ChannelLayout.of(channels)

    def total(tree: FieldTree, context: FieldContext) -> Scalar:
        tree = {**tree, **{key: widened(tree[key]) for key in ("y_pred", "y")}}
        context = dataclasses.replace(context, **settings)
        value = loss(tree, context)
        plain = dataclasses.replace(context, channel_weights=None)
        for factor, term in terms:
            value = value + factor * term(tree, plain)
        return value

    return total


def build_channel_weights(
    weights: Mapping[str, Any], channels: Mapping[str, int]
) -> Float[np.ndarray, " channel"]:
    """Expands `loss.variable_weights` to every target channel.

    Args:
        weights: one number for each variable, or one for each of its levels.
        channels: number of channels of each target variable, in channel order. A name
            may be a whole key ("ERA5/prognostic/3d/U"), whose last part is used.

    Returns:
        (channel,) float32.

    Raises:
        ValueError: a variable has no weight, a wrong number of them, or is no target.

    Differs from CREDIT: weights are matched by name, not by their order in the file,
    and one number for a variable with levels applies to all of them.
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


def _chosen_loss(config: LossConfig, validation: bool, num_members: int | None) -> Loss:
    name, parameters, key, parameters_key = _choice(config, validation)
    loss = choose_loss(name, parameters, key, parameters_key=parameters_key)
    fewest = LOSSES[name].num_members
    if num_members is not None and num_members < fewest:
        raise ValueError(
            f"{key}: {name} scores an ensemble: set trainer.ensemble_size to {fewest} "
            f"or more (got {num_members})"
        )
    return loss


def _choice(
    config: LossConfig, validation: bool
) -> tuple[str, Mapping[str, Any], str, str]:
    """Name and parameters of the loss, and the config keys of both."""
    if config.type is not None:
        return config.type, config.args, "loss.type", "loss.args"
    name, parameters = config.training_loss, config.training_loss_parameters
    ensemble = config.is_weighted and name == "KCRPS"
    falls_back = config.is_weighted or config.members_are_ranks
    if (
        not validation
        or ensemble
        or (config.validation_loss is None and not falls_back)
    ):
        key = "loss.training_loss"
    elif config.validation_loss is not None:
        key, name = "loss.validation_loss", config.validation_loss
        parameters = config.validation_loss_parameters
    else:
        key, name, parameters = "loss.validation_loss", DEFAULT_VALIDATION_LOSS, {}
    return name, parameters, key, f"{key}_parameters"


def _spectral_terms(config: LossConfig) -> list[tuple[float, Loss]]:
    """Factors and losses of the terms that are added to a weighted training loss."""
    requested = {"power": config.use_power_loss, "spectral": config.use_spectral_loss}
    names = [name for name, used in requested.items() if used and config.is_weighted]
    if not names:
        return []
    factor, first = config.spectral_lambda_reg, config.spectral_wavenum_init
    if factor is None or first is None:
        raise ValueError(
            "loss.use_power_loss and loss.use_spectral_loss need "
            "loss.spectral_lambda_reg and loss.spectral_wavenum_init"
        )
    parameters = {"wavenum_init": first}
    return [(factor, choose_loss(name, parameters, f"loss.{name}")) for name in names]


def _needed(channels: Mapping[str, int] | None, setting: str) -> Mapping[str, int]:
    if channels is None:
        raise ValueError(
            f"loss: {setting} needs the target channels (`build_loss(config, channels)`"
            ")"
        )
    return channels


def _row_weights(config: LossConfig, latitude: np.ndarray | None) -> np.ndarray | None:
    if not config.weighs_rows:
        return None
    if latitude is None:
        key, _ = config.latitude_file
        raise ValueError(
            f"{key.replace('.latitude', '.use_latitude')}: true needs {key}, a file "
            "with a `latitude` coordinate"
        )
    return latitude_weights(latitude)


def _channel_weights(
    config: LossConfig,
    channels: Mapping[str, int] | None,
    by_level: Mapping[str, np.ndarray],
) -> np.ndarray | None:
    """Weights of channels by variable and by level; None if all are 1."""
    weights = np.ones(())
    if by_level:
        weights = np.concatenate([*by_level.values()])
    if config.type is not None or not config.use_variable_weights:
        return weights.astype(np.float32) if by_level else None
    if not config.variable_weights:
        raise ValueError(
            "loss.use_variable_weights: true needs loss.variable_weights, "
            "{variable: weight or one weight for each level}"
        )
    channels = _needed(channels, "use_variable_weights: true")
    by_variable = build_channel_weights(config.variable_weights, channels)
    return (by_variable * weights).astype(np.float32)


def _level_weights(
    config: LossConfig,
    channels: Mapping[str, int] | None,
    levels: Mapping[str, Sequence[float] | None] | None,
) -> dict[str, np.ndarray]:
    """Weights of the levels of each variable by key; {} without `level_weights`.

    A variable of one channel without a level has the weight 1.
    """
    section = config.level_weights
    if section is None:
        return {}
    weights = {}
    for key, count in _needed(channels, "level_weights").items():
        known = (levels or {}).get(key)
        if known is None and count == 1:
            weights[key] = np.ones(1)
        elif known is None or len(known) != count:
            raise ValueError(
                f"loss.level_weights: the values of the {count} levels of {key} are "
                "unknown; give levels of its source in data.source, or leave "
                "level_weights out"
            )
        else:
            weights[key] = np.array([section.of(float(level)) for level in known])
    if not any(array.any() for array in weights.values()):
        raise ValueError(
            "loss.level_weights: all weights are 0; take a larger slope or minimum"
        )
    return weights


def _with_tendencies(
    weights: Mapping[str, np.ndarray],
    channels: Mapping[str, int] | None,
    tendencies: Mapping[str, Sequence[float]] | None,
) -> dict[str, np.ndarray]:
    """Weights of channels by key times 1 / variance of tendencies, with mean 1.

    Channels without a variance, such as diagnostic ones, keep their weights.
    """
    if tendencies is None:
        raise ValueError(
            "loss.tendency_weights needs the variances of its file "
            "(`build_loss(config, channels, tendencies=...)`)"
        )
    counts = _needed(channels, "tendency_weights")
    inverse = {key: 1 / np.asarray(values) for key, values in tendencies.items()}
    mean = np.concatenate([*inverse.values(), *([] if inverse else [[1.0]])]).mean()
    return {
        key: weights.get(key, np.ones(count))
        * inverse.get(key, np.full(count, mean))
        / mean
        for key, count in counts.items()
    }
