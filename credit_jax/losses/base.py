"""What a loss is: a function of two whole fields that gives one number.

Adding a loss takes a function of this type in a module of its own, one line in
`credit_jax.losses.registry`, and its test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext

# Local arrays; `samples` is `batch` times the ensemble members.
Prediction = Float[Array, "samples channel time rows lon"]
Target = Float[Array, "batch channel time rows lon"]
Scalar = Float[Array, ""]

# (prediction, target, context) -> the same number on every shard. Arrays are local,
# in float32 or wider; with ensemble members, the prediction has `num_members` times
# the samples of the target.
Loss: TypeAlias = Callable[[Array, Array, FieldContext], Array]


class NoParameters(StrictModel):
    """For a loss without parameters."""


@dataclass(frozen=True)
class LossEntry:
    """A loss by name.

    Attributes:
        build: from validated parameters to the loss.
        parameters: class of `training_loss_parameters`.
    """

    build: Callable[[Any], Loss]
    parameters: type[StrictModel] = NoParameters
