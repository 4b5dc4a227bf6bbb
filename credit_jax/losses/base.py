"""The type of losses: functions from the named fields of a step to a scalar.

To add a loss, write a class with `@LOSSES.register(NAME)`, and its test.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.config.components import Registry
from credit_jax.named_fields import FieldContext, FieldTree, keys_of_tree
from credit_jax.ops.custom_vjp import varying_axes

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
    """A `Loss` with several logged parts, and optionally with trained parameters."""

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Initial values of the parameters that are trained with the model, by name."""
        # In training, they are in `context.loss_parameters`.
        return {}

    @abc.abstractmethod
    def parts(self, tree: FieldTree, context: FieldContext) -> dict[str, Scalar]:
        """Computes the parts by their name in the log, the same on every shard."""

    @abc.abstractmethod
    def total(self, parts: Mapping[str, Scalar], context: FieldContext) -> Scalar:
        """Computes the loss from its parts."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
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
    """Checks that what a loss or a metric returned is a scalar, the same everywhere."""
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


class ConfiguredLoss(StrictModel, abc.ABC):
    """A loss that configs name; its fields are its `training_loss_parameters`.

    Attributes of a class: `num_members`, the smallest number of ensemble members of a
    sample; `needs_latitude`, whether it is a function of latitude; `in_credit`, whether
    CREDIT has it; `validates_weighted`, whether a weighted one is the validation loss,
    too, as in CREDIT; `mixes_samples`, whether it is no mean over samples.
    """

    num_members: ClassVar[int] = 1
    needs_latitude: ClassVar[bool] = False
    in_credit: ClassVar[bool] = True
    validates_weighted: ClassVar[bool] = False
    mixes_samples: ClassVar[bool] = False
    unavailable: ClassVar = {
        "reduction": Unavailable(
            "a loss is the mean over samples, channels and grid points: leave it out",
            harmless=("mean", "none"),
        )
    }

    @abc.abstractmethod
    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """Computes the loss, see `Loss`."""


class PointwiseLoss(ConfiguredLoss):
    """A loss that is the mean of values at every point.

    `type: base` can apply it to single variables.
    """

    @abc.abstractmethod
    def values(
        self, prediction: Array, target: Array, context: FieldContext
    ) -> ChannelFields:
        """Computes the values; the target is repeated for members of an ensemble."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        target = context.repeat_members(tree["y"])
        return context.mean(self.values(tree["y_pred"], target, context))


LOSSES: Registry[type[ConfiguredLoss]] = Registry("loss", ConfiguredLoss)


def pointwise_losses() -> list[str]:
    """Names of the losses that are means of values at every point."""
    return [name for name, cls in LOSSES.items() if issubclass(cls, PointwiseLoss)]


def absolute(x: Array) -> Array:
    """`|x|` with the derivative 0 at 0, as PyTorch's; that of `jnp.abs` there is 1."""
    return x * lax.stop_gradient(jnp.sign(x))
