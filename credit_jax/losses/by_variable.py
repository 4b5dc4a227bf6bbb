"""The loss `base`: the weighted mean of one loss per variable, in physical units."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from pydantic import Field, PrivateAttr

from credit_jax.config import StrictModel, parse
from credit_jax.config.loss import SCALED, WeightArgs
from credit_jax.losses.base import (
    CompositeLoss,
    PointwiseLoss,
    Scalar,
    parse_loss,
    pointwise_losses,
)
from credit_jax.named_fields import (
    SMALLEST_VARIANCE,
    ChannelLayout,
    FieldContext,
    FieldTree,
    ScoredVariables,
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


class BaseLoss(WeightArgs, CompositeLoss):
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
    _losses: Mapping[str, PointwiseLoss] = PrivateAttr()
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
        variances: Mapping[str, float] | None = None,
        level_weights: Mapping[str, np.ndarray] | None = None,
        validation: bool = False,
    ) -> BaseLoss:
        """Builds the loss.

        Args:
            args: arguments of the section.
            channels: number of channels of each target variable, by key.
            row_weights: (lat,) area weights; None for equal weights.
            variances: variances of the target variables by key, for `var_weighting:
                inverse_variance` and `learnable`; 1 for a missing key.
            level_weights: weights of the levels of variables by key; 1 for a missing
                key.
            validation: whether to build the loss of `validation_loss`.

        Raises:
            ValueError: an argument is invalid, a loss is unknown or has no value at
                every point, `var_weighting` needs `variances`, or weights name unknown
                variables.
        """
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
        if not self._learns:
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
        if self._learns and computed:
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
        if not self._learns:
            return self._scored.mean(scores, keys)
        initial = self.parameters[LOG_VARIANCE]
        logs = context.loss_parameters.get(LOG_VARIANCE, initial)
        multipliers = self.variable_weights
        factors = np.asarray([multipliers.get(key, 1.0) for key in keys], np.float32)
        return (factors * jnp.exp(-logs) * scores + 0.5 * logs).mean()

    @property
    def _learns(self) -> bool:
        return self.var_weighting == "learnable"


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
) -> PointwiseLoss:
    """The loss of one variable, see `parse_loss`; keys are those within the section."""
    path = f"{SECTION}.{key}"
    loss = parse_loss(name, parameters, path, f"{SECTION}.{parameters_key}")
    if not isinstance(loss, PointwiseLoss):
        raise ValueError(
            f"{path}: {name!r} gives no value at every point, which `type: base` "
            f"needs; expected one of {', '.join(pointwise_losses())}"
        )
    return loss
