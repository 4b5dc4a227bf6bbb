"""`base`: a loss of each variable in physical units, and their weighted mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import BaseLossArgs
from credit_jax.fields import (
    SMALLEST_VARIANCE,
    ChannelLayout,
    FieldContext,
    FieldTree,
    check_multipliers,
    combination_weights,
    named_pair,
)
from credit_jax.losses.base import CompositeLoss, Pointwise, Scalar
from credit_jax.losses.registry import choose_pointwise

# Name of the trained parameter of `var_weighting: learnable`.
LOG_VARIANCE = "log_variance"
# What the names of the parts begin with.
PART = "loss_var/"


def build_base_loss(
    args: BaseLossArgs,
    channels: Mapping[str, int],
    *,
    row_weights: Float[np.ndarray, " lat"] | None = None,
    variances: Mapping[str, float] | None = None,
    validation: bool = False,
) -> BaseLoss:
    """The loss of `type: base`, from the mean `L_v` of each variable's `w_lat l(p, t)`.

    `mean_v(w_v L_v)`, or with `var_weighting: learnable`, with trained `s_v` and the
    multipliers `m_v` of `variable_weights`, `mean_v(m_v exp(-s_v) L_v + s_v / 2)`.

    It reads "y_processed" and "y_target_processed" of the tree, so that a loss of
    fields in physical units reaches the model through the postblocks. Every variable
    counts once, whatever its number of levels.

    Args:
        args: see `BaseLossArgs`.
        channels: number of channels of each target variable, by key.
        row_weights: (lat,) area weights; None weighs rows alike.
        variances: of the target variables by key, for `var_weighting:
            inverse_variance` and `learnable`; one that is not there counts as 1.
        validation: build the loss of `validation_loss`.

    Raises:
        ValueError: a loss that gives no value at every point, or weights without
            variances or for unknown variables.
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
    return BaseLoss(args, channels, values, overrides, row_weights, used)


@dataclass(frozen=True, eq=False)
class BaseLoss(CompositeLoss):
    """See `build_base_loss`; its parts are "loss_var/KEY", the `L_v`.

    Attributes:
        args: of the section.
        channels: number of channels of each target variable, by key.
        values: of a variable at every point.
        overrides: the same for single variables, by key.
        row_weights: (lat,) area weights, or None.
        variances: of the target variables by key, where weights need them.

    In validation `s_v` has its initial value, as in CREDIT.
    """

    args: BaseLossArgs
    channels: Mapping[str, int]
    values: Pointwise
    overrides: Mapping[str, Pointwise]
    row_weights: Float[np.ndarray, " lat"] | None
    variances: Mapping[str, float] | None

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """With `learnable`, the logarithm of each target's variance, float32."""
        if not self._learns:
            return {}
        found = self.variances or {}
        known = [max(found.get(key, 1.0), SMALLEST_VARIANCE) for key in self.channels]
        return {LOG_VARIANCE: np.log(known).astype(np.float32)}

    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """The mean score of each variable."""
        prediction, target, layout = named_pair(
            tree,
            self.channels,
            include_computed=self.args.include_computed_diagnostics,
        )
        self._check_computed(layout)
        context = dataclasses.replace(
            context,
            channels=layout,
            row_weights=self.row_weights,
            channel_weights=None,
        )
        target = context.repeat_members(target)
        scores = context.variable_mean(
            _by_variable(self.values, self.overrides, prediction, target, context)
        )
        return {f"{PART}{key}": scores[i] for i, key in enumerate(layout.keys)}

    def total(self, parts: Mapping[str, Scalar], context: FieldContext) -> Scalar:
        """The mean over the variables of their weighted scores."""
        scores = jnp.stack([*parts.values()])
        keys = [name.removeprefix(PART) for name in parts]
        multipliers = self.args.variable_weights
        if self._learns:
            initial = self.parameters[LOG_VARIANCE]
            logs = context.loss_parameters.get(LOG_VARIANCE, initial)
            own = np.asarray([multipliers.get(key, 1.0) for key in keys], np.float32)
            return (own * jnp.exp(-logs) * scores + 0.5 * logs).mean()
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
    """Values at every point, by the loss of each variable."""
    parts = [
        overrides.get(group[0], values)(prediction[:, place], target[:, place], context)
        for group, place in _groups(context.layout, overrides)
    ]
    return jnp.concatenate(parts, axis=1)


def _groups(
    layout: ChannelLayout, overrides: Mapping[str, Pointwise]
) -> list[tuple[list[str], slice]]:
    """Adjacent variables with the same loss, and their channels."""
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
    for key, own in args.base_loss_overrides.items():
        if "crps" in own.loss.casefold():
            raise ValueError(
                f"loss.args.base_loss_overrides.{key}: {own.loss} is a loss of an "
                "ensemble, which counts only as training_loss"
            )
    return {
        key: choose_pointwise(
            own.loss, own.parameters, f"loss.args.base_loss_overrides.{key}"
        )
        for key, own in args.base_loss_overrides.items()
    }
