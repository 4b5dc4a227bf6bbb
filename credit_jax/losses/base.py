"""The type of losses: functions from the named fields of a step to a scalar.

To add a loss, write a function of this type in a new module, one line in
`credit_jax.losses.registry`, and its test.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext, FieldTree, keys_of_tree
from credit_jax.ops.vma import varying_axes

# Local arrays; `samples` is `batch` times the ensemble members.
Prediction = Float[Array, "samples channel time rows lon"]
Target = Float[Array, "batch channel time rows lon"]
ChannelFields = Float[Array, "samples channel time rows lon"]
Scalar = Float[Array, ""]

# (tree, context) -> the same scalar on every shard. The tree is the output of the
# postblocks: always "y_pred" (a Prediction) and "y" (a Target), in float32 or wider,
# and the named fields "y_processed" and "y_target_processed" if postblocks make them.
Loss: TypeAlias = Callable[[FieldTree, FieldContext], Array]


class CompositeLoss(abc.ABC):
    """A `Loss` with several logged parts, and optionally with trained parameters.

    `loss(tree, context)` is `loss.total(loss.parts(tree, context), context)`. In
    training, the parameters are in `context.loss_parameters`.
    """

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Initial values of the parameters that are trained with the model, by name."""
        return {}

    @abc.abstractmethod
    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """Computes the parts by their name in the log, the same on every shard."""

    @abc.abstractmethod
    def total(self, parts: Mapping[str, Scalar], context: FieldContext) -> Scalar:
        """Computes the loss from its parts."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """Computes the loss."""
        return self.total(self.parts(tree, context), context)


def value_and_parts(
    loss: Loss, tree: FieldTree, context: FieldContext
) -> tuple[Scalar, dict[str, Scalar]]:
    """Computes a loss and its parts, which only a `CompositeLoss` has."""
    with keys_of_tree("the loss", tree):
        if not isinstance(loss, CompositeLoss):
            return loss(tree, context), {}
        parts = loss.parts(tree, context)
        return loss.total(parts, context), parts


def check_global(name: str, value: Array) -> None:
    """Checks that a number is a scalar, and the same on all devices.

    Args:
        name: name of the number, for the error.
        value: what a loss or a metric returned, inside of `shard_map`.

    Raises:
        ValueError: it has dims, or is computed from the shards of a device alone.
    """
    if jnp.shape(value):
        raise ValueError(
            f"{name} has the shape {jnp.shape(value)}; expected a scalar: reduce the "
            "fields with context.mean(values)"
        )
    axes = sorted(varying_axes(jnp.asarray(value)))
    if axes:
        raise ValueError(
            f"{name} differs between the devices of the mesh axes {', '.join(axes)}, "
            "as it is a mean over the samples and rows that a device has; expected the "
            "mean over the whole batch and globe: take context.mean(values) instead of "
            "jnp.mean(values)"
        )


def initial_parameters(loss: Loss) -> dict[str, Array]:
    """Initial values of the trained parameters of a loss, by name; often empty."""
    if not isinstance(loss, CompositeLoss):
        return {}
    return {name: jnp.asarray(value) for name, value in loss.parameters.items()}


# (prediction, target, context) -> values of the same shape, whose weighted mean is the
# loss. The target has as many samples as the prediction: it is repeated for members.
Pointwise: TypeAlias = Callable[[Array, Array, FieldContext], Array]


@dataclass(frozen=True)
class LossEntry:
    """An entry of the registry of losses.

    Attributes:
        build: builds the loss from its validated parameters.
        parameters: class that validates `training_loss_parameters`.
        build_pointwise: builds the function of values at every point from the validated
            parameters, for losses that `type: base` can apply to single variables;
            None for other losses.
        num_members: smallest number of ensemble members of a sample.
    """

    build: Callable[[Any], Loss]
    parameters: type[StrictModel] = StrictModel
    build_pointwise: Callable[[Any], Pointwise] | None = None
    num_members: int = 1


def pointwise(
    build: Callable[[Any], Pointwise], parameters: type[StrictModel] = StrictModel
) -> LossEntry:
    """Makes the entry of a loss that is `context.mean` of values at every point.

    Args:
        build: builds the function of these values from its validated parameters.
        parameters: class that validates these parameters.
    """

    def build_mean(settings: Any) -> Loss:
        values = build(settings)

        def loss(tree: FieldTree, context: FieldContext) -> Scalar:
            target = context.repeat_members(tree["y"])
            return context.mean(values(tree["y_pred"], target, context))

        return loss

    build_mean.__doc__ = build.__doc__
    return LossEntry(build_mean, parameters, build)


def absolute(x: Array) -> Array:
    """`|x|` with the derivative 0 at 0, as PyTorch's; that of `jnp.abs` there is 1."""
    return x * lax.stop_gradient(jnp.sign(x))
