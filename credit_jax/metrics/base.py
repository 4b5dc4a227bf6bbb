"""The type of metrics: functions of forecast and target with a value per variable.

To add a metric, write a function of type `Score`, one line in
`credit_jax.metrics.registry`, and its test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext, FieldTree

PerVariable = Float[Array, " variable"]
# (tree, context) -> values of a step by name, the same on every shard.
Measure: TypeAlias = Callable[[FieldTree, FieldContext], dict[str, Array]]


@dataclass(frozen=True)
class Pair:
    """A forecast and its target, as local arrays in float32 or wider.

    Attributes:
        prediction: (samples, channel, time, rows, lon); every ensemble member is a
            sample, those of the first target first.
        target: (samples, channel, time, rows, lon), repeated for every member.
        climatology: (1, channel, time, rows, lon), or None for metrics without one.
        context: global means, channels, area weights, number of members.
    """

    prediction: Array
    target: Array
    climatology: Array | None
    context: FieldContext

    @property
    def members(self) -> Array:
        """The forecast by member, (batch, member, channel, time, rows, lon)."""
        return self.context.members(self.prediction)

    @property
    def ensemble_mean(self) -> Array:
        """The mean over members, (batch, channel, time, rows, lon)."""
        return self.members.mean(axis=1)

    @property
    def truth(self) -> Array:
        """The target without repetition, (batch, channel, time, rows, lon)."""
        return self.context.members(self.target)[:, 0]

    def mean(self, values: Array) -> PerVariable:
        """Area-weighted mean of each variable."""
        return self.context.variable_mean(values)

    def centered(self, values: Array) -> Array:
        """`values` minus the area-weighted mean of their variable."""
        return values - self.context.layout.per_channel(self.mean(values))

    def anomaly(self, values: Array) -> Array:
        """`values` minus the climatology, centered."""
        assert self.climatology is not None, "checked when the metrics are built"
        return self.centered(values - self.climatology)


# (pair, **parameters) -> (variable,) values, the same on every shard.
Score: TypeAlias = Callable[..., Array]


class AnomalyParameters(StrictModel):
    """Parameters of a metric that compares with a climatology.

    Attributes:
        climatology_path: file with a mean field of each variable, by its name; for
            variables that it lacks, the mean of the targets of the batch is used. null
            uses the mean of the training period.
        accumulate_climatology: if false, and without a file, the mean of the targets of
            the batch is used.

    Differs from CREDIT: without a file CREDIT uses the running mean of the targets of
    training and validation.
    """

    climatology_path: str | None = None
    accumulate_climatology: bool = True


@dataclass(frozen=True)
class MetricEntry:
    """An entry of the registry of metrics.

    Attributes:
        score: computes (variable,) values, the same on every shard.
        parameters: class that validates the keyword arguments of `score`. With
            `AnomalyParameters`, `Pair.climatology` is set and `score` gets no keyword
            arguments.
        scale_power: power of a variable's unit in the score: 2 for a squared error, 1
            for an error, 0 for a ratio.
    """

    score: Score
    parameters: type[StrictModel] = StrictModel
    scale_power: int = 2
