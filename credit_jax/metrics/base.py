"""The type of metrics: functions of forecast and target, one number per variable.

Adding a metric takes a function of this type in a module of its own, one line in
`credit_jax.metrics.registry`, and its test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext

PerVariable = Float[Array, " variable"]


@dataclass(frozen=True)
class Pair:
    """A forecast and its target, as local arrays in float32 or wider.

    Attributes:
        prediction: (samples, channel, time, rows, lon); the members of an ensemble are
            samples of their own, those of the first target first.
        target: (samples, channel, time, rows, lon), repeated for every member.
        climatology: (1, channel, 1, rows, lon); None where there is none.
        context: global means, channels, area weights, number of members.
    """

    prediction: Array
    target: Array
    climatology: Array | None
    context: FieldContext

    @property
    def members(self) -> Array:
        """(batch, member, channel, time, rows, lon) the forecast by member."""
        return self.context.members(self.prediction)

    @property
    def ensemble_mean(self) -> Array:
        """(batch, channel, time, rows, lon) the mean of the members."""
        return self.members.mean(axis=1)

    @property
    def truth(self) -> Array:
        """(batch, channel, time, rows, lon) the target, once for all members."""
        return self.context.members(self.target)[:, 0]

    def mean(self, values: Array) -> PerVariable:
        """Weighted mean of each variable."""
        return self.context.variable_mean(values)

    def centered(self, values: Array) -> Array:
        """`values` less the weighted mean of their variable."""
        return values - self.context.layout.per_channel(self.mean(values))

    def anomaly(self, values: Array) -> Array:
        """`values` less the climatology, less the mean of that."""
        assert self.climatology is not None, "checked when the metrics are built"
        return self.centered(values - self.climatology)


# (pair, **parameters) -> (variable,) numbers, the same on every shard.
Score: TypeAlias = Callable[..., Array]


class NoParameters(StrictModel):
    """For a metric without parameters."""


class AnomalyParameters(StrictModel):
    """Of a metric that compares with a climatology.

    Attributes:
        climatology_path: file with a mean field of each variable, by its name; a
            variable that it lacks is compared with the mean of the batch. null is the
            mean of the training period.
        accumulate_climatology: false compares with the mean of the batch, where no file
            is given.

    Differs from CREDIT: without a file CREDIT takes the mean of the targets that it has
    seen so far, in training and in validation.
    """

    climatology_path: str | None = None
    accumulate_climatology: bool = True


@dataclass(frozen=True)
class MetricEntry:
    """A metric by name.

    Attributes:
        score: gives (variable,) numbers, the same on every shard.
        parameters: class of its keyword arguments, which the config may set. With
            `AnomalyParameters` the score finds `Pair.climatology` and gets none.
        scale_power: power of the unit of a variable that the score has: 2 for a squared
            error, 1 for an error, 0 for a ratio.
    """

    score: Score
    parameters: type[StrictModel] = NoParameters
    scale_power: int = 2
