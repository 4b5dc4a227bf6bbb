"""Builds the `loss` section of a config as one function inside `shard_map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config.loss import LossConfig
from credit_jax.losses.base import LOSSES, Loss, Scalar, parse_loss
from credit_jax.losses.by_variable import BaseLoss
from credit_jax.losses.errors import Mae
from credit_jax.losses.spectra import Power, Spectral
from credit_jax.named_fields import (
    ChannelLayout,
    FieldContext,
    FieldTree,
    row_weights,
    widened,
)


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
    `tendency_weights`. For `type: base` see `BaseLoss`.

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
    rows = None
    if config.weighs_rows:
        section = config.latitude_file[0].removesuffix(".latitude_weights")
        rows = row_weights(latitude, section)
    by_variable = config.type is None and config.use_variable_weights
    for name, needs in (
        ("type: base", config.is_base),
        ("level_weights", config.level_weights is not None),
        ("tendency_weights", config.tendency_weights is not None),
        ("use_variable_weights: true", by_variable),
    ):
        if needs and channels is None:
            raise ValueError(
                f"loss: {name} needs the target channels (`build_loss(config, "
                "channels)`)"
            )
    counts = channels or {}
    weights = _weights_by_key(config, counts, levels or {}, tendencies)
    if config.is_base:
        return BaseLoss.bind(
            config.args,
            counts,
            row_weights=rows,
            variances=variances,
            level_weights=weights,
            validation=validation,
        )
    loss = _chosen_loss(config, validation, num_members)
    terms = [] if validation else _spectral_terms(config)
    by_channel = np.concatenate([*weights.values()]) if weights else None
    if by_variable and not config.variable_weights:
        raise ValueError(
            "loss.use_variable_weights: true needs loss.variable_weights, {variable: "
            "weight or one weight for each level}"
        )
    if by_variable:
        factors = build_channel_weights(config.variable_weights, counts)
        by_channel = factors * (1.0 if by_channel is None else by_channel)
    settings: dict[str, Any] = {
        "row_weights": rows,
        "latitude": latitude,
        "channel_weights": None if by_channel is None else by_channel.astype("float32"),
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
    parts = []
    for name, num in zip(names, channels.values(), strict=True):
        values = np.atleast_1d(np.asarray(weights[name], np.float64))
        if len(values) not in (1, num):
            raise ValueError(
                f"loss.variable_weights.{name}: got {len(values)} weights, expected 1 "
                f"or {num} (one for each level)"
            )
        parts.append(np.broadcast_to(values, (num,)))
    return np.concatenate(parts).astype(np.float32)


def needs_latitude(config: LossConfig) -> bool:
    """Whether a loss of a section is a function of latitude, or weighs rows."""
    names = {config.name, config.validation_loss} & LOSSES.keys()
    return config.weighs_rows or any(LOSSES[name].needs_latitude for name in names)


def _chosen_loss(config: LossConfig, validation: bool, num_members: int | None) -> Loss:
    key, name = "loss.training_loss", config.training_loss
    parameters, parameters_key = config.training_loss_parameters, None
    cls = LOSSES.get(name)
    validates = config.is_weighted and cls is not None and cls.validates_weighted
    falls_back = config.is_weighted or config.members_are_ranks
    if config.type is not None:
        key, name = "loss.type", config.type
        parameters, parameters_key = config.args, "loss.args"
    elif validation and not validates and config.validation_loss is not None:
        key, name = "loss.validation_loss", config.validation_loss
        parameters = config.validation_loss_parameters
    elif validation and not validates and falls_back:
        return Mae()
    loss = parse_loss(name, parameters, key, parameters_key)
    if num_members is not None and num_members < loss.num_members:
        raise ValueError(
            f"{key}: {name} scores an ensemble: set trainer.ensemble_size to "
            f"{loss.num_members} or more (got {num_members})"
        )
    return loss


def _spectral_terms(config: LossConfig) -> list[tuple[float, Loss]]:
    """Factors and losses of the terms that are added to a weighted training loss."""
    requested = {Power: config.use_power_loss, Spectral: config.use_spectral_loss}
    classes = [cls for cls, used in requested.items() if used and config.is_weighted]
    factor, first = config.spectral_lambda_reg, config.spectral_wavenum_init
    if not classes:
        return []
    if factor is None or first is None:
        raise ValueError(
            "loss.use_power_loss and loss.use_spectral_loss need "
            "loss.spectral_lambda_reg and loss.spectral_wavenum_init"
        )
    return [(factor, cls(wavenum_init=first)) for cls in classes]


def _weights_by_key(
    config: LossConfig,
    channels: Mapping[str, int],
    levels: Mapping[str, Sequence[float] | None],
    tendencies: Mapping[str, Sequence[float]] | None,
) -> dict[str, np.ndarray]:
    """Weights of the channels of each variable by level and by tendency; {} for 1.

    A variable of one channel without a level has the weight 1. Weights by tendency are
    1 / variance with mean 1; channels without a variance, such as diagnostic ones, keep
    their weights.
    """
    weights: dict[str, np.ndarray] = {}
    section = config.level_weights
    if section is not None:
        for key, count in channels.items():
            values = levels.get(key)
            if values is None and count == 1:
                weights[key] = np.ones(1)
            elif values is None or len(values) != count:
                raise ValueError(
                    f"loss.level_weights: the values of the {count} levels of {key} "
                    "are unknown; give levels of its source in data.source, or leave "
                    "level_weights out"
                )
            else:
                slopes = section.slope * np.array(values, np.float64)
                weights[key] = np.maximum(section.minimum, slopes)
        if not any(array.any() for array in weights.values()):
            raise ValueError(
                "loss.level_weights: all weights are 0; take a larger slope or minimum"
            )
    if config.tendency_weights is None:
        return weights
    if tendencies is None:
        raise ValueError(
            "loss.tendency_weights needs the variances of its file "
            "(`build_loss(config, channels, tendencies=...)`)"
        )
    inverse = {key: 1 / np.asarray(values) for key, values in tendencies.items()}
    mean = np.concatenate([*inverse.values(), *([] if inverse else [[1.0]])]).mean()
    return {
        key: weights.get(key, np.ones(count))
        * inverse.get(key, np.full(count, mean))
        / mean
        for key, count in channels.items()
    }
