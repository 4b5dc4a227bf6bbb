"""`base`: a loss of each variable in physical units, and their weighted mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import BaseLossArgs
from credit_jax.fields import (
    ChannelLayout,
    FieldContext,
    FieldTree,
    check_multipliers,
    combination_weights,
    named_pair,
)
from credit_jax.losses.base import Loss, Pointwise, Scalar
from credit_jax.losses.registry import choose_pointwise


def build_base_loss(
    args: BaseLossArgs,
    channels: Mapping[str, int],
    *,
    row_weights: Float[np.ndarray, " lat"] | None = None,
    variances: Mapping[str, float] | None = None,
    validation: bool = False,
) -> Loss:
    """The loss of `type: base`: `mean_v(w_v mean(w_lat l(p_v, t_v)))`.

    It reads "y_processed" and "y_target_processed" of the tree, so that a loss of
    fields in physical units reaches the model through the postblocks. Every variable
    counts once, whatever its number of levels.

    Args:
        args: see `BaseLossArgs`.
        channels: number of channels of each target variable, by key.
        row_weights: (lat,) area weights; None weighs rows alike.
        variances: of the target variables by key, for `var_weighting:
            inverse_variance`; one that is not there counts as 1.
        validation: build the loss of `validation_loss`.

    Raises:
        ValueError: a loss that gives no value at every point, or weights without
            variances or for unknown variables.
    """
    if args.var_weighting == "inverse_variance" and variances is None:
        raise ValueError(
            "loss.args.var_weighting: inverse_variance needs loss.args.scaler_path, a "
            "file of scalers with the variances of the targets"
        )
    check_multipliers(
        args.variable_weights,
        list(channels),
        "loss.args",
        include_computed=args.include_computed_diagnostics,
    )
    values, overrides = _chosen(args, validation), _overrides(args)
    used = variances if args.var_weighting == "inverse_variance" else None

    def loss(tree: FieldTree, context: FieldContext) -> Scalar:
        prediction, target, layout = named_pair(
            tree, channels, include_computed=args.include_computed_diagnostics
        )
        context = dataclasses.replace(
            context, channels=layout, row_weights=row_weights, channel_weights=None
        )
        target = context.repeat_members(target)
        scores = context.variable_mean(
            _by_variable(values, overrides, prediction, target, context)
        )
        weights = combination_weights(
            layout.keys,
            variances=used,
            multipliers=args.variable_weights,
            normalize=args.normalize_weights,
        )
        return (scores * jnp.asarray(weights, scores.dtype)).mean()

    return loss


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
