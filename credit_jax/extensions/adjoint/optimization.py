"""The initial state of the forecast that is nearest to the truth.

CREDIT's trainer `ic-opt` (credit/trainers/ic_optimization.py): AdamW on the normalized
prognostic variables, by the adjoint of the forecast, in windows of growing length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.config.assimilation import OptimizeConfig
from credit_jax.extensions.adjoint.maps import TARGET, ForecastMap, State
from credit_jax.losses import Loss
from credit_jax.parallel.compiler import compile_program
from credit_jax.transforms import FieldTree

# Of the learning rate, what is left at the end; and windows, in steps, from which on it
# is halved each time.
_LAST, _HALVED_FROM = 1e-4, 56


@dataclass(frozen=True, eq=False)
class TrajectoryLoss(ForecastMap):
    """Mean loss over the steps of a forecast, as a function of its initial state."""

    loss: Loss | None = None  # of the tree after a step, with the target as "y"

    @classmethod
    def of(
        cls,
        forecast: ForecastMap,
        loss: Loss,
        targets: Float[Array, "step batch channel 1 rows lon"],
    ) -> TrajectoryLoss:
        """The loss of a forecast."""
        later = {**forecast.constants["later"], TARGET: targets}
        constants = {**forecast.constants, "later": later}
        values = {f.name: getattr(forecast, f.name) for f in fields(forecast)}
        return cls(**{**values, "constants": constants}, loss=loss)

    def first(self, num_steps: int) -> TrajectoryLoss:
        """The loss of the first steps alone."""
        later = jax.tree.map(lambda x: x[:num_steps], self.constants["later"])
        constants = {**self.constants, "later": later}
        return replace(self, constants=constants, leads=tuple(range(1, num_steps + 1)))

    def function(self, weights: Any, constants: Mapping[str, Any], state: State) -> Any:
        """The mean loss as a function of all its arrays, not jitted."""
        return self.mapped(weights, constants, state, PartitionSpec()).mean()

    def measured(self, tree: FieldTree) -> Any:
        """The loss of a step."""
        assert self.loss is not None, "a trajectory has a loss"
        return self.loss(tree, self.context)


@dataclass(frozen=True)
class StateIteration:
    """One update of an initial state."""

    window: int
    learning_rate: float
    loss: float


def optimize_state(
    loss: TrajectoryLoss,
    config: OptimizeConfig,
    num_steps: int,
    progress: Callable[[StateIteration], None] = lambda iteration: None,
) -> dict[str, Array]:
    """Fits the normalized initial state: key -> (batch, level, time, lat, lon)."""
    windows = config.windows(num_steps)
    state: Any = {key: jnp.asarray(x) for key, x in loss.state.items()}
    adam = optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(config.weight_decay)
    )

    def update(gradient: Any, moments: Any, state: Any, rate: Array) -> Any:
        if config.max_norm != 0:
            # As torch's `clip_grad_norm_`.
            norm = optax.tree.norm(gradient)
            dynamic = config.max_norm == "dynamic"
            largest = jnp.sqrt(norm) if dynamic else jnp.float32(config.max_norm)
            factor = jnp.minimum(1.0, largest / (norm + 1e-6))
            gradient = jax.tree.map(lambda x: x * factor, gradient)
        changes, moments = adam.update(gradient, moments, state)
        state = jax.tree.map(lambda x, change: x - rate * change, state, changes)
        return state, moments

    updated = compile_program(update, loss.step.model.mesh)
    moments, rates = adam.init(state), _learning_rates(config, windows)
    for window in windows:
        of_window = loss.first(window)
        for _ in range(config.iterations):
            value, gradient = of_window.run("gradient", state, jnp.float32(1.0))
            rate = next(rates)
            iteration = StateIteration(window, rate, float(value))
            if not math.isfinite(iteration.loss):
                raise FloatingPointError(
                    f"the loss of {window} steps is {iteration.loss}; take a smaller "
                    "optimize_ic.learning_rate"
                )
            state, moments = updated(gradient, moments, state, jnp.float32(rate))
            progress(iteration)
    return state


def _learning_rates(config: OptimizeConfig, windows: list[int]) -> Iterator[float]:
    """The rate of each iteration: torch's `CosineAnnealingLR`, which CREDIT halves."""
    # The schedule is a recursion, so that what has been halved stays so.
    total = len(windows) * config.iterations - 1
    rate, low, count = config.learning_rate, _LAST * config.learning_rate, 0
    for window in windows:
        for _ in range(config.iterations):
            yield rate
            count += 1
            if count <= total:
                fall = [1 + math.cos(math.pi * k / total) for k in (count, count - 1)]
                rate = low + (rate - low) * fall[0] / fall[1]
        if window + config.window > _HALVED_FROM:
            rate *= 0.5
