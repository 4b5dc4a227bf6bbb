"""What a metric is: a function of a forecast and its target, one number per variable.

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
        members: (batch, member, channel, time, rows, lon); one member if the forecast
            is no ensemble.
        target: (batch, channel, time, rows, lon).
        climatology: (1, channel, 1, rows, lon); None where there is none.
        context: global means, channels, area weights.
    """

    members: Array
    target: Array
    climatology: Array | None
    context: FieldContext

    @property
    def prediction(self) -> Array:
        """(batch, channel, time, rows, lon) the forecast: the mean of its members."""
        if self.members.shape[1] == 1:
            return self.members[:, 0]
        return self.members.mean(axis=1)

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


@dataclass(frozen=True)
class MetricEntry:
    """A metric by name.

    Attributes:
        score: gives (variable,) numbers, the same on every shard.
        parameters: class of its keyword arguments, which the config may set.
        needs_climatology: whether it reads `Pair.climatology`.
    """

    score: Score
    parameters: type[StrictModel] = NoParameters
    needs_climatology: bool = False
