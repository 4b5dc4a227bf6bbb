"""The loss `base`: the weighted mean of one loss per variable, in physical units."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import BaseLossArgs
from credit_jax.losses.base import CompositeLoss, Pointwise, Scalar
from credit_jax.losses.registry import choose_pointwise
from credit_jax.named_fields import (
    SMALLEST_VARIANCE,
    ChannelLayout,
    FieldContext,
    FieldTree,
    check_multipliers,
    combination_weights,
    named_pair,
    warn_unscored,
)

# Name of the trained parameter of `var_weighting: learnable`.
LOG_VARIANCE = "log_variance"
# Prefix of the names of the parts.
PART = "loss_var/"


def build_base_loss(
    args: BaseLossArgs,
    channels: Mapping[str, int],
    *,
    row_weights: Float[np.ndarray, " lat"] | None = None,
    variances: Mapping[str, float] | None = None,
    level_weights: Mapping[str, np.ndarray] | None = None,
    validation: bool = False,
) -> BaseLoss:
    """Builds the loss of `type: base`.

    With `L_v` the mean of `w_lat w_level l(p, t)` over a variable, it is
    `mean_v(w_v L_v)`. With `var_weighting: learnable` it is
    `mean_v(m_v exp(-s_v) L_v + s_v / 2)`, where `s_v` are trained and `m_v` are the
    multipliers of `variable_weights`.

    It reads "y_processed" and "y_target_processed" of the tree, so the gradient of a
    loss in physical units flows to the model through the postblocks. Every variable has
    the same weight, whatever its number of levels.

    Args:
        args: see `BaseLossArgs`.
        channels: number of channels of each target variable, by key.
        row_weights: (lat,) area weights; None for equal weights.
        variances: variances of the target variables by key, for `var_weighting:
            inverse_variance` and `learnable`; 1 for a missing key.
        level_weights: weights of the levels of variables by key; 1 for a missing key.
        validation: whether to build the loss of `validation_loss`.

    Raises:
        ValueError: a loss is unknown or has no value at every point, `var_weighting`
            needs `variances`, or weights name unknown variables.
    """
    if args.needs_variances and variances is None:
        raise ValueError(
            f"loss.args.var_weighting: {args.var_weighting} needs loss.args."
            "scaler_path, a file of scalers with the variances of the targets"
        )
    check_multipliers(
        args.variable_weights,
        list(channels),
        "loss.args",
        include_computed=args.include_computed_diagnostics,
    )
    values, overrides = _chosen(args, validation), _overrides(args)
    used = variances if args.needs_variances else None
    levels = level_weights or {}
    return BaseLoss(args, channels, values, overrides, row_weights, used, levels)


@dataclass(frozen=True, eq=False)
class BaseLoss(CompositeLoss):
    """The loss of `build_base_loss`; its parts are the `L_v`, as "loss_var/KEY".

    In validation `s_v` has its initial value, as in CREDIT.

    Attributes:
        args: arguments of the section.
        channels: number of channels of each target variable, by key.
        values: loss of a variable at every point.
        overrides: other such losses for single variables, by key.
        row_weights: (lat,) area weights, or None.
        variances: variances of the target variables by key, if the weights need them.
        level_weights: weights of the levels of variables by key; 1 for a missing key.
    """

    args: BaseLossArgs
    channels: Mapping[str, int]
    values: Pointwise
    overrides: Mapping[str, Pointwise]
    row_weights: Float[np.ndarray, " lat"] | None
    variances: Mapping[str, float] | None
    level_weights: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Logarithm of each target's variance, float32, if `learnable`; else empty."""
        if not self._learns:
            return {}
        variances = self.variances or {}
        known = [
            max(variances.get(key, 1.0), SMALLEST_VARIANCE) for key in self.channels
        ]
        return {LOG_VARIANCE: np.log(known).astype(np.float32)}

    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """Computes the mean `L_v` of each variable, by "loss_var/KEY"."""
        prediction, target, layout = named_pair(
            tree,
            self.channels,
            include_computed=self.args.include_computed_diagnostics,
        )
        self._check_computed(layout)
        for name in ("variable_weights", "base_loss_overrides"):
            warn_unscored(getattr(self.args, name), layout.keys, f"loss.args.{name}")
        context = dataclasses.replace(
            context,
            channels=layout,
            row_weights=self.row_weights,
            channel_weights=None,
        )
        target = context.repeat_members(target)
        by_channel = context.channel_mean(
            _by_variable(self.values, self.overrides, prediction, target, context)
        )
        if self.level_weights:
            weights = [
                self.level_weights.get(key, np.ones(count))
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
        multipliers = self.args.variable_weights
        if self._learns:
            initial = self.parameters[LOG_VARIANCE]
            logs = context.loss_parameters.get(LOG_VARIANCE, initial)
            factors = np.asarray(
                [multipliers.get(key, 1.0) for key in keys], np.float32
            )
            return (factors * jnp.exp(-logs) * scores + 0.5 * logs).mean()
        weights = combination_weights(
            keys,
            variances=self.variances,
            multipliers=multipliers,
            normalize=self.args.normalize_weights,
        )
        return (scores * jnp.asarray(weights, scores.dtype)).mean()

    @property
    def _learns(self) -> bool:
        return self.args.var_weighting == "learnable"

    def _check_computed(self, layout: ChannelLayout) -> None:
        computed = [key for key in layout.keys if key not in self.channels]
        if self._learns and computed:
            raise ValueError(
                "loss.args.var_weighting: learnable has parameters for the targets of "
                f"the data alone, but postblocks compute {', '.join(computed)}; set "
                "include_computed_diagnostics: false, or take another var_weighting"
            )


def _by_variable(
    values: Pointwise,
    overrides: Mapping[str, Pointwise],
    prediction: Array,
    target: Array,
    context: FieldContext,
) -> Array:
    """Values at every point, each variable with its own loss."""
    parts = [
        overrides.get(group[0], values)(prediction[:, place], target[:, place], context)
        for group, place in _groups(context.layout, overrides)
    ]
    return jnp.concatenate(parts, axis=1)


def _groups(
    layout: ChannelLayout, overrides: Mapping[str, Pointwise]
) -> list[tuple[list[str], slice]]:
    """Groups of adjacent variables with the same loss, and their channels."""
    groups: list[tuple[list[str], slice]] = []
    for key, place in layout.slices.items():
        joins = groups and key not in overrides and groups[-1][0][0] not in overrides
        if joins:
            keys, before = groups[-1]
            groups[-1] = ([*keys, key], slice(before.start, place.stop))
        else:
            groups.append(([key], place))
    return groups


def _chosen(args: BaseLossArgs, validation: bool) -> Pointwise:
    if validation and args.validation_loss is not None:
        return choose_pointwise(
            args.validation_loss,
            args.validation_loss_parameters,
            "loss.args.validation_loss",
        )
    return choose_pointwise(
        args.training_loss,
        args.base_loss_parameters,
        "loss.args.training_loss",
        parameters_key="loss.args.base_loss_parameters",
    )


def _overrides(args: BaseLossArgs) -> dict[str, Pointwise]:
    for key, override in args.base_loss_overrides.items():
        if "crps" in override.loss.casefold():
            raise ValueError(
                f"loss.args.base_loss_overrides.{key}: {override.loss} is a loss of an "
                "ensemble, which counts only as training_loss"
            )
    overrides = {}
    for key, override in args.base_loss_overrides.items():
        where = f"loss.args.base_loss_overrides.{key}"
        overrides[key] = choose_pointwise(
            override.loss,
            override.parameters,
            f"{where}.loss",
            parameters_key=f"{where}.parameters",
        )
    return overrides
