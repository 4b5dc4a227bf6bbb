"""Observation operators: from the fields of a forecast to what is observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.config import not_available
from credit_jax.config.components import Registry
from credit_jax.extensions.assimilation.observations import TrajectoryGrid
from credit_jax.forecast.forecaster import to_host
from credit_jax.ops.space_to_depth import next_power_of_2
from credit_jax.parallel.compiler import compile_program

# Key -> field at the start of a forecast and after every step, physical units. What the
# start lacks is 0 there.
Trajectory: TypeAlias = Mapping[str, Float[Array, "time level lat lon"]]


@runtime_checkable
class Operator(Protocol):
    """The observation operator of one observed variable."""

    def prepare(self, observations: pd.DataFrame, grid: TrajectoryGrid) -> Any:
        """Returns a tree of arrays with what it needs of some observations."""
        # Those of one window, and copies of the first one, so that few numbers of them
        # occur and compile.
        ...

    def __call__(self, arrays: Any, trajectory: Trajectory) -> Float[Array, " obs"]:
        """The values that would be observed; a traced, differentiable function."""
        ...


@dataclass(frozen=True)
class OperatorEntry:
    """An entry of the registry of observation operators."""

    build: Callable[[str, TrajectoryGrid], Operator]  # from the name of a variable


@dataclass(frozen=True)
class Interpolation:
    """Linear interpolation in time, level, latitude and longitude."""

    key: str
    name: str

    def prepare(
        self, observations: pd.DataFrame, grid: TrajectoryGrid
    ) -> tuple[np.ndarray, np.ndarray]:
        """(dim, 2, obs) neighbors along time, level, lat, lon, and weights."""
        column = {name: observations[name].to_numpy() for name in observations}
        levels, seconds = grid.variables[self.name].levels, np.timedelta64(1, "s")
        alone = np.zeros(1), np.zeros(len(observations))
        axes = [
            neighbors(
                (grid.times - grid.times[0]) / seconds,
                (column["time"] - grid.times[0]) / seconds,
            ),
            neighbors(*(alone if levels is None else (levels, column["level"]))),
            neighbors(grid.latitude, column["latitude"]),
            neighbors(grid.longitude, column["longitude"], period=360.0),
        ]
        indices, weights = zip(*axes, strict=True)
        return np.stack(indices), np.stack(weights)

    def __call__(self, arrays: Any, trajectory: Trajectory) -> Float[Array, " obs"]:
        """The interpolated values."""
        shapes = [tuple(2 if k == dim else 1 for k in range(4)) for dim in range(4)]
        indices, weights = (
            [x.reshape(*shape, -1) for x, shape in zip(array, shapes, strict=True)]
            for array in arrays
        )
        product = weights[0] * weights[1] * weights[2] * weights[3]
        fields = trajectory[self.key][tuple(indices)]
        # A neighbor without weight may be missing.
        return jnp.where(product == 0, 0.0, fields * product).sum((0, 1, 2, 3))


def neighbors(
    values: np.ndarray, points: np.ndarray, period: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(2, point) indices of the values, in any order, around points, and weights."""
    order, count = np.argsort(values), len(values)
    line = values[order]
    if period is not None:
        order = np.argsort(values % period)
        line = (values % period)[order]
        points = line[0] + (points - line[0]) % period
        line, order = np.append(line, line[0] + period), np.append(order, order[0])
    elif count == 1:
        line, order = np.append(line, line + 1.0), np.zeros(2, int)
    right = np.clip(np.searchsorted(line, points, side="right"), 1, len(line) - 1)
    weight = (points - line[right - 1]) / (line[right] - line[right - 1])
    indices = np.stack([order[right - 1], order[right]])
    weights = np.stack([1 - weight, weight])
    return indices.astype(np.int32), weights.astype(np.float32)


OPERATORS: Registry[OperatorEntry] = Registry("operator", OperatorEntry)


def operators_of(names: Mapping[str, str], grid: TrajectoryGrid) -> dict[str, Operator]:
    """Observed variable -> its operator; interpolation for all that forecasts have."""
    operators: dict[str, Operator] = {
        name: Interpolation(variable.key, name)
        for name, variable in grid.variables.items()
    }
    for variable, name in names.items():
        if name not in OPERATORS:
            raise not_available(
                f"assimilation.operators.{variable}: the operator", name, OPERATORS
            )
        operator = OPERATORS[name].build(variable, grid)
        if not isinstance(operator, Operator):
            raise ValueError(
                f"assimilation.operators.{variable}: {name!r} builds a "
                f"{type(operator).__name__}; expected an object that has the method "
                "prepare(observations, grid) and is called as (arrays, trajectory)"
            )
        operators[variable] = operator
    return operators


@dataclass(frozen=True, eq=False)
class Observed:
    """The observations of a window, and what their operators need."""

    table: pd.DataFrame  # sorted by variable
    counts: Mapping[str, int]  # observations of each variable
    arrays: Mapping[str, Any]  # by variable, for a power of 2 of observations

    @property
    def values(self) -> np.ndarray:
        """(obs,) what was observed."""
        return self.table["value"].to_numpy()

    @property
    def errors(self) -> np.ndarray:
        """(obs,) standard deviations of their errors."""
        return self.table["error"].to_numpy()

    def joined(self, values: Mapping[str, Any]) -> np.ndarray:
        """(obs,) float64 of values by variable."""
        parts = [to_host(values[name])[:n] for name, n in self.counts.items()]
        return np.concatenate([np.zeros(0), *parts])

    def split(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Values by variable, float32, with zeros for the copies."""
        parts, first = {}, 0
        for name, count in self.counts.items():
            parts[name] = np.zeros(next_power_of_2(count), np.float32)
            parts[name][:count] = values[first : first + count]
            first += count
        return parts


@dataclass(frozen=True, eq=False)
class Observer:
    """All observation operators, compiled: H, and its products."""

    operators: Mapping[str, Operator]
    mesh: Mesh

    def observed(self, table: pd.DataFrame, grid: TrajectoryGrid) -> Observed:
        """Prepares the observations of a window."""
        table = table.sort_values("variable", kind="stable", ignore_index=True)
        counts, arrays = {}, {}
        for name, part in table.groupby("variable"):
            rows = np.zeros(next_power_of_2(len(part)), int)
            rows[: len(part)] = np.arange(len(part))
            counts[str(name)] = len(part)
            arrays[str(name)] = self.operators[str(name)].prepare(part.iloc[rows], grid)
        return Observed(table, counts, arrays)

    def values(self, observed: Observed, state: Any, fields: Any) -> np.ndarray:
        """(obs,) H of a forecast."""
        values = self._programs["values"](observed.arrays, state, fields)
        for name, count in observed.counts.items():
            expected = (next_power_of_2(count),)
            if values[name].shape != expected:
                raise ValueError(
                    f"assimilation.operators.{name}: the operator returns an array of "
                    f"shape {values[name].shape}, expected {expected}: one value for "
                    "each row of the observations that its prepare gets"
                )
        return observed.joined(values)

    def tangents(
        self, observed: Observed, at: tuple[Any, Any], changes: tuple[Any, Any]
    ) -> np.ndarray:
        """(obs,) the change of H at a state and its fields, by changes of both."""
        return observed.joined(self._programs["tangents"](observed.arrays, at, changes))

    def gradient(
        self, observed: Observed, at: tuple[Any, Any], weights: np.ndarray
    ) -> tuple[Any, Any]:
        """The gradient of <weights, H> by a state and its fields."""
        split = observed.split(weights)
        return self._programs["gradient"](observed.arrays, at, split)

    @cached_property
    def _programs(self) -> dict[str, Any]:
        # Apart from the forecast, so that its programs serve all windows, whatever is
        # observed in them.
        full = NamedSharding(self.mesh, PartitionSpec())

        def values(arrays: Any, state: Any, fields: Any) -> dict[str, Array]:
            trajectory = trajectory_of(state, fields)
            observed = {
                name: self.operators[name](part, trajectory)
                for name, part in arrays.items()
            }
            return jax.lax.with_sharding_constraint(observed, full)

        functions = {
            "values": values,
            "tangents": lambda arrays, at, changes: jax.jvp(
                partial(values, arrays), at, changes
            )[1],
            "gradient": lambda arrays, at, weights: jax.vjp(
                partial(values, arrays), *at
            )[1](weights),
        }
        return {k: compile_program(f, self.mesh) for k, f in functions.items()}


def trajectory_of(state: Any, fields: Any) -> dict[str, Array]:
    """(time, level, lat, lon) of the first sample at the start and after each step."""
    trajectory = {}
    for key, steps in fields.items():
        steps = steps[:, 0]
        start = state[key][0, :, -1] if key in state else jnp.zeros_like(steps[0])
        trajectory[key] = jnp.concatenate([start[None], steps])
    return trajectory
