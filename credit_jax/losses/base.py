"""The type of losses: functions from the named fields of a step to one number.

Adding a loss takes a function of this type in a module of its own, one line in
`credit_jax.losses.registry`, and its test.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext, FieldTree

# Local arrays; `samples` is `batch` times the ensemble members.
Prediction = Float[Array, "samples channel time rows lon"]
Target = Float[Array, "batch channel time rows lon"]
Values = Float[Array, "samples channel time rows lon"]
Scalar = Float[Array, ""]

# (tree, context) -> the same number on every shard. The tree holds what the postblocks
# left: always "y_pred" (a Prediction) and "y" (a Target), in float32 or wider, and
# where postblocks made them the named fields "y_processed" and "y_target_processed".
Loss: TypeAlias = Callable[[FieldTree, FieldContext], Array]


class CompositeLoss(abc.ABC):
    """A `Loss` of several parts, which the log shows, perhaps with own parameters.

    `loss(tree, context)` is `loss.total(loss.parts(tree, context), context)`. In
    training, the parameters are in `context.loss_parameters`.
    """

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Initial values, by name, of what is trained with the model."""
        return {}

    @abc.abstractmethod
    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """The parts, by their name in the log, the same on every shard."""

    @abc.abstractmethod
    def total(self, parts: Mapping[str, Scalar], context: FieldContext) -> Scalar:
        """The loss from its parts."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """The loss."""
        return self.total(self.parts(tree, context), context)


def value_and_parts(
    loss: Loss, tree: FieldTree, context: FieldContext
) -> tuple[Scalar, dict[str, Scalar]]:
    """A loss, and the parts that it is made of; most have none."""
    if not isinstance(loss, CompositeLoss):
        return loss(tree, context), {}
    parts = loss.parts(tree, context)
    return loss.total(parts, context), parts


def initial_parameters(loss: Loss) -> dict[str, Array]:
    """Initial values of the trained parameters of a loss; most have none."""
    if not isinstance(loss, CompositeLoss):
        return {}
    return {name: jnp.asarray(value) for name, value in loss.parameters.items()}


# (prediction, target, context) -> values of the same shape, whose weighted mean is the
# loss. The target has as many samples as the prediction.
Pointwise: TypeAlias = Callable[[Array, Array, FieldContext], Array]


class NoParameters(StrictModel):
    """For a loss without parameters."""


@dataclass(frozen=True)
class LossEntry:
    """A loss by name.

    Attributes:
        build: from validated parameters to the loss.
        parameters: class of `training_loss_parameters`.
        build_pointwise: from validated parameters to values at every point, for the
            losses that the loss `base` can take for single variables.
        num_members: fewest ensemble members of a sample.
    """

    build: Callable[[Any], Loss]
    parameters: type[StrictModel] = NoParameters
    build_pointwise: Callable[[Any], Pointwise] | None = None
    num_members: int = 1


def pointwise(
    build: Callable[[Any], Pointwise], parameters: type[StrictModel] = NoParameters
) -> LossEntry:
    """The loss `context.mean(values)` of values at every point.

    Args:
        build: from validated parameters to the function that gives the values.
        parameters: class of these parameters.
    """

    def build_mean(settings: Any) -> Loss:
        values = build(settings)

        def loss(tree: FieldTree, context: FieldContext) -> Scalar:
            target = context.repeat_members(tree["y"])
            return context.mean(values(tree["y_pred"], target, context))

        return loss

    return LossEntry(build_mean, parameters, build)
