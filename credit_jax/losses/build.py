"""The `loss` section of a config as one function inside `shard_map`.

`BaseLoss` is its `type: base`, the weighted mean of one loss per variable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from pydantic import Field, PrivateAttr

from credit_jax.config import StrictModel, parse
from credit_jax.config.loss import SCALED, LossConfig, WeightArgs
from credit_jax.losses import base
from credit_jax.losses.base import LOSSES, Scalar
from credit_jax.losses.named import Mae, Power, Spectral
from credit_jax.named_fields import (
    SMALLEST_VARIANCE,
    ChannelLayout,
    FieldContext,
    FieldTree,
    ScoredVariables,
    row_weights,
    widened,
)

# Name of the trained parameter of `var_weighting: learnable`.
LOG_VARIANCE = "log_variance"
# Prefix of the names of the parts.
PART = "loss_var/"
SECTION = "loss.args"
VarWeighting = Literal["inverse_variance", "manual", "learnable", "none"]


class LossOverride(StrictModel):
    """Another loss for one variable of the loss `base`.

    Attributes:
        loss: name of the loss.
        parameters: arguments of the loss.
    """

    loss: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class BaseLoss(WeightArgs, base.CompositeLoss):
    """The loss `base`: the weighted mean of one loss per variable, in physical units.

    With `L_v` the mean of `w_lat w_level l(p, t)` over a variable, it is
    `mean_v(w_v L_v)`. With `var_weighting: learnable` it is
    `mean_v(m_v exp(-s_v) L_v + s_v / 2)`, where `s_v` are trained and `m_v` are the
    multipliers of `variable_weights`; in validation `s_v` has its initial value, as in
    CREDIT. Its parts are the `L_v`, as "loss_var/KEY".

    It reads "y_processed" and "y_target_processed" of the tree, so the gradient of a
    loss in physical units flows to the model through the postblocks. Every variable has
    the same weight, whatever its number of levels.

    Attributes:
        training_loss: name of the loss of one variable.
        base_loss_parameters: arguments of `training_loss`.
        validation_loss: name of the validation loss; null is `training_loss`.
        validation_loss_parameters: arguments of `validation_loss`.
        base_loss_overrides: other losses for single variables, by key.
        var_weighting: weights of variables: `inverse_variance` uses the variances of
            the target scalers, `manual` and `none` only `variable_weights`; `learnable`
            trains the logarithm of each variable's variance, with the scalers' values
            as initial ones.
    """

    training_loss: str = "mse"
    base_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    validation_loss: str | None = None
    validation_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    base_loss_overrides: dict[str, LossOverride] = Field(default_factory=dict)
    var_weighting: VarWeighting = "inverse_variance"

    _scored: ScoredVariables = PrivateAttr()
    _losses: Mapping[str, base.PointwiseLoss] = PrivateAttr()
    _level_weights: Mapping[str, np.ndarray] = PrivateAttr()

    # JAX hashes functions, and the fields hold mappings.
    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @classmethod
    def bind(
        cls,
        args: Mapping[str, Any],
        channels: Mapping[str, int],
        *,
        row_weights: Float[np.ndarray, " lat"] | None = None,
        variances: Mapping[str, float] | None = None,  # by key; 1 for a missing one
        level_weights: Mapping[str, np.ndarray] | None = None,  # by key, too
        validation: bool = False,
    ) -> BaseLoss:
        """Builds the loss of the arguments of the section, or that of validation."""
        loss = parse(cls, args, SECTION)
        scaled = loss.var_weighting in SCALED
        if scaled and variances is None:
            raise ValueError(
                f"{SECTION}.var_weighting: {loss.var_weighting} needs {SECTION}."
                "scaler_path, a file of scalers with the variances of the targets"
            )
        used = variances if scaled else None
        loss._scored = ScoredVariables(loss, SECTION, channels, row_weights, used)
        name, parameters = loss.training_loss, loss.base_loss_parameters
        key, parameters_key = "training_loss", "base_loss_parameters"
        if validation and loss.validation_loss is not None:
            name, parameters = loss.validation_loss, loss.validation_loss_parameters
            key, parameters_key = "validation_loss", "validation_loss_parameters"
        losses = {"": _pointwise(name, parameters, key, parameters_key)}
        for variable, override in loss.base_loss_overrides.items():
            key = f"base_loss_overrides.{variable}"
            if "crps" in override.loss.casefold():
                raise ValueError(
                    f"{SECTION}.{key}: {override.loss} is a loss of an ensemble, which "
                    "counts only as training_loss"
                )
            losses[variable] = _pointwise(
                override.loss, override.parameters, f"{key}.loss", f"{key}.parameters"
            )
        loss._losses, loss._level_weights = losses, level_weights or {}
        return loss

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Logarithm of each target's variance, float32, if `learnable`; else empty."""
        if self.var_weighting != "learnable":
            return {}
        variances = self._scored.variances or {}
        initial = [
            max(variances.get(key, 1.0), SMALLEST_VARIANCE)
            for key in self._scored.channels
        ]
        return {LOG_VARIANCE: np.log(initial).astype(np.float32)}

    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """Computes the mean `L_v` of each variable, by "loss_var/KEY"."""
        prediction, target, context = self._scored.pair(tree, context)
        layout = context.layout
        computed = [key for key in layout.keys if key not in self._scored.channels]
        if self.var_weighting == "learnable" and computed:
            raise ValueError(
                f"{SECTION}.var_weighting: learnable has parameters for the targets of "
                f"the data alone, but postblocks compute {', '.join(computed)}; set "
                "include_computed_diagnostics: false, or take another var_weighting"
            )
        self._scored.warn_unscored("base_loss_overrides", layout.keys)
        target = context.repeat_members(target)
        values = [
            self._losses.get(keys[0], self._losses[""]).values(
                prediction[:, channels], target[:, channels], context
            )
            for keys, channels in _groups(layout, self._losses)
        ]
        by_channel = context.channel_mean(jnp.concatenate(values, axis=1))
        if self._level_weights:
            weights = [
                self._level_weights.get(key, np.ones(count))
                for key, count in zip(layout.keys, layout.counts, strict=True)
            ]
            factors = jnp.asarray(np.concatenate(weights), by_channel.dtype)
            by_channel = by_channel * factors
        scores = layout.per_variable(by_channel)
        return {f"{PART}{key}": scores[i] for i, key in enumerate(layout.keys)}

    def total(self, parts: Mapping[str, Scalar], context: FieldContext) -> Scalar:
        """Computes the weighted mean over variables."""
        scores = jnp.stack([*parts.values()])
        keys = [name.removeprefix(PART) for name in parts]
        if self.var_weighting != "learnable":
            return self._scored.mean(scores, keys)
        initial = self.parameters[LOG_VARIANCE]
        logs = context.loss_parameters.get(LOG_VARIANCE, initial)
        multipliers = self.variable_weights
        factors = np.asarray([multipliers.get(key, 1.0) for key in keys], np.float32)
        return (factors * jnp.exp(-logs) * scores + 0.5 * logs).mean()


def _groups(
    layout: ChannelLayout, overrides: Collection[str]
) -> list[tuple[list[str], slice]]:
    """Groups of adjacent variables with the same loss, and their channels."""
    groups: list[tuple[list[str], slice]] = []
    for key, channels in layout.slices.items():
        joins = groups and key not in overrides and groups[-1][0][0] not in overrides
        if joins:
            keys, first = groups[-1]
            groups[-1] = ([*keys, key], slice(first.start, channels.stop))
        else:
            groups.append(([key], channels))
    return groups


def _pointwise(
    name: str, parameters: Mapping[str, Any], key: str, parameters_key: str
) -> base.PointwiseLoss:
    """The loss of one variable; keys are those within the section."""
    path = f"{SECTION}.{key}"
    loss = parse(LOSSES.find(name, path), parameters, f"{SECTION}.{parameters_key}")
    if not isinstance(loss, base.PointwiseLoss):
        raise ValueError(
            f"{path}: {name!r} gives no value at every point, which `type: base` "
            f"needs; expected one of {', '.join(base.pointwise_losses())}"
        )
    return loss


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
) -> base.Loss:
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
    # Terms that are added to a weighted training loss.
    requested = {Power: config.use_power_loss, Spectral: config.use_spectral_loss}
    weighted = config.is_weighted and not validation
    classes = [cls for cls, used in requested.items() if used and weighted]
    factor, first = config.spectral_lambda_reg, config.spectral_wavenum_init
    if classes and (factor is None or first is None):
        raise ValueError(
            "loss.use_power_loss and loss.use_spectral_loss need "
            "loss.spectral_lambda_reg and loss.spectral_wavenum_init"
        )
    terms = [(factor, cls(wavenum_init=first)) for cls in classes]
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
    """Expands `loss.variable_weights` to every target channel."""
    # A name may be a whole key ("ERA5/prognostic/3d/U"), whose last part is used.
    # Differs from CREDIT: weights are matched by name, not by their order in the file,
    # and one number for a variable with levels applies to all of them.
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


def _chosen_loss(
    config: LossConfig, validation: bool, num_members: int | None
) -> base.Loss:
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
    cls, path = LOSSES.find(name, key), parameters_key or f"{key}_parameters"
    loss = parse(cls, parameters, path)
    if num_members is not None and num_members < loss.num_members:
        raise ValueError(
            f"{key}: {name} scores an ensemble: set trainer.ensemble_size to "
            f"{loss.num_members} or more (got {num_members})"
        )
    return loss


def _weights_by_key(
    config: LossConfig,
    channels: Mapping[str, int],
    levels: Mapping[str, Sequence[float] | None],
    tendencies: Mapping[str, Sequence[float]] | None,
) -> dict[str, np.ndarray]:
    """Weights of the channels of each variable by level and by tendency; {} for 1."""
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
    # 1 / variance with mean 1; channels without a variance, such as diagnostic ones,
    # keep their weights.
    inverse = {key: 1 / np.asarray(values) for key, values in tendencies.items()}
    mean = np.concatenate([*inverse.values(), *([] if inverse else [[1.0]])]).mean()
    return {
        key: weights.get(key, np.ones(count))
        * inverse.get(key, np.full(count, mean))
        / mean
        for key, count in channels.items()
    }
