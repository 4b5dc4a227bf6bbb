"""Singular vectors: the perturbations that grow most in a forecast; members of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from pydantic import Field
from scipy.sparse.linalg import LinearOperator, eigsh

from credit_jax.config import not_available
from credit_jax.config.dates import Timestep, duration_text
from credit_jax.config.messages import counted
from credit_jax.data.perturbations import SECTION, Changes, Members, Scaled
from credit_jax.data.schedule import ForecastSchedule, Task, steps_of
from credit_jax.extensions.adjoint.maps import (
    ForecastMap,
    State,
    linearized,
    map_of_plan,
)
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import to_dataset
from credit_jax.forecast.outputs import Outputs
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields.units import UNIT_OF, conversion, differ
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.transforms.base import variable_of

# Key -> array that broadcasts to (level, lat, lon): the squared norm is the sum over
# all variables and points of weight times square.
NormWeights = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class SingularVectors:
    """The leading singular vectors of a forecast, by decreasing growth."""

    values: np.ndarray  # (vector,), norm at the end by norm at the start
    initial: dict[str, np.ndarray]  # key -> (vector, level, time, lat, lon), of norm 1
    final: dict[str, np.ndarray]  # key -> (vector, level, lat, lon), of the last step


def singular_vectors(
    forecast: ForecastMap, state: State, count: int, weights: NormWeights, seed: int = 0
) -> SingularVectors:
    """Computes singular vectors by Lanczos' method on M' M, with products alone."""
    shapes = {key: np.shape(x) for key, x in state.items()}
    for key, values in state.items():
        if not np.array_equal(values, np.broadcast_to(values[:1], shapes[key]), True):
            raise ValueError(
                f"state: the {shapes[key][0]} samples of {key} differ; singular "
                "vectors are those of one"
            )
    roots = {}
    for key, of_variable in weights.items():
        if key not in shapes:
            raise not_available("weights: the variable", key, shapes)
        _, levels, times, *grid = shapes[key]
        if times != 1:
            raise ValueError(
                f"state: {key} has shape {shapes[key]}; singular vectors are those of "
                "one time"
            )
        full = np.broadcast_to(np.asarray(of_variable, np.float64), (levels, *grid))
        if not (full > 0).all():
            raise ValueError(f"weights: {key} must be positive, got {full.min():g}")
        roots[key] = np.sqrt(full)[None, :, None]
    size = sum(root.size for root in roots.values())
    if not 0 < count < size:
        raise ValueError(f"count: got {count}, expected 1 to {size - 1}")
    linear = linearized(forecast, state)

    def unflattened(vector: np.ndarray) -> dict[str, np.ndarray]:
        parts = 0
        fields: dict[str, np.ndarray] = {
            key: np.zeros(shape, np.float32) for key, shape in shapes.items()
        }
        for key, root in roots.items():
            part = vector[parts : parts + root.size].reshape(root.shape)
            fields[key] = np.broadcast_to((part / root).astype(np.float32), shapes[key])
            parts += root.size
        return fields

    def product(vector: np.ndarray) -> np.ndarray:
        tangents = linear.tangent_linear(unflattened(vector.ravel()))
        squares = {}
        for key, root in roots.items():
            # Of the leads the last counts.
            squares[key] = np.zeros_like(fields := to_host(tangents[key]))
            squares[key][-1] = fields[-1] * (root**2)[:, :, 0]
        gradient = linear.adjoint(squares)
        parts = [to_host(gradient[key])[:1] / root for key, root in roots.items()]
        return np.concatenate([np.float64(part).ravel() for part in parts])

    start = np.random.default_rng(seed).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)  # type: ignore[call-arg]
    # ARPACK takes about three times as many products as there are vectors: a forecast,
    # its tangent and its adjoint each.
    squares, vectors = eigsh(operator, count, v0=start, tol=1e-6)  # type: ignore[arg-type]
    order = np.argsort(squares)[::-1]
    initial = [unflattened(vectors[:, index]) for index in order]
    final = [linear.tangent_linear(fields) for fields in initial]
    return SingularVectors(
        np.sqrt(np.maximum(squares[order], 0.0)),
        {key: np.stack([fields[key][0] for fields in initial]) for key in roots},
        {
            key: np.stack([to_host(fields[key])[-1, 0] for fields in final])
            for key in roots
        },
    )


def area_weights(
    state: State, latitude: np.ndarray, factors: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Weights of the mean over the area and the levels of each variable."""
    area = np.cos(np.deg2rad(latitude if latitude.ndim == 2 else latitude[:, None]))
    area = np.maximum(area, 1e-3 * area.max())  # Rows at the poles have points, too.
    weights = {}
    for key, factor in (
        dict.fromkeys(state, 1.0) if factors is None else factors
    ).items():
        _, levels, _, *grid = np.shape(state[key])
        full = np.broadcast_to(area, grid)
        weights[key] = np.stack([factor * full / (full.sum() * levels)] * levels)
    return weights


# Of the total energy of a dry atmosphere, J/kg, in layers of equal mass, by CF's
# standard names, in SI units; T0 = 270 K, p0 = 1000 hPa (Ehrendorfer and Errico 1995).
ENERGY = {
    "eastward_wind": 0.5,
    "northward_wind": 0.5,
    "air_temperature": 0.5 * 1004.0 / 270.0,
    "surface_air_pressure": 0.5 * 287.0 * 270.0 / 1e10,
}


def energy_factors(
    outputs: Outputs,
    keys: Iterable[str],
    origin: str = "--norm energy",
    instead: str = "name the variables and their weights, such as "
    "--norm U=0.5,V=0.5,T=1.86,SP=3.9e-6",
) -> dict[str, float]:
    """Key -> factor of the total energy, of the variables that have one."""
    described = {v.key: outputs.attributes_of(v) for v in outputs.variables}
    names = {key: str(x.get("standard_name", "")) for key, x in described.items()}
    factors = {}
    for key in (key for key in keys if names.get(key, "") in ENERGY):
        expected = UNIT_OF[names[key]]
        units = str(described[key].get("units", ""))
        change = conversion(units, expected)
        if change is None and differ(units, expected):
            raise ValueError(
                f"{origin}: {variable_of(key)} is in {units}, expected {expected}; "
                f"{instead}"
            )
        factors[key] = ENERGY[names[key]] * (change[0] if change else 1.0) ** 2
    if not factors:
        raise ValueError(
            f"{origin}: no prognostic variable of the data has one of the standard "
            f"names {', '.join(ENERGY)}; {instead}"
        )
    return factors


def dataset_of(
    vectors: SingularVectors,
    outputs: Outputs,
    times: Sequence[np.datetime64],
) -> xr.Dataset:
    """`singular_value`, and each variable at the start and, as NAME_final, the end."""
    chosen = replace(outputs.only(vectors.initial), attributes={})
    initial = {key: field[:, :, 0] for key, field in vectors.initial.items()}
    parts = []
    for fields, time in zip((initial, vectors.final), times, strict=True):
        steps = [
            to_dataset(chosen, [time], [{k: x[number] for k, x in fields.items()}])
            for number in range(len(vectors.values))
        ]
        parts.append(
            xr.concat([step.isel(time=0, drop=True) for step in steps], "vector")
        )
    start, end = parts
    for variable in chosen.variables:
        units = outputs.attributes_of(variable).get("units")
        for part in parts:
            part[variable.name].attrs = {"units": str(units)} if units else {}
    full = start.merge(end.rename({name: f"{name}_final" for name in end.data_vars}))
    dates = dict(zip(("initial_time", "final_time"), times, strict=True))
    return full.assign(singular_value=("vector", vectors.values)).assign_coords(dates)


class Singular(Scaled):
    """Singular vectors: the perturbations that grow most in a forecast.

    `std` is a mean over all perturbed variables.

    Attributes:
        vectors: number of singular vectors, each of which is added to one member and
            subtracted from the next.
        lead: time over which they grow most ("48h").
        norm: norm in which they grow: "deviation", the units of `std`; or "energy", the
            total energy of a dry atmosphere, of variables that have its standard names.
    """

    vectors: int = Field(default=5, ge=1)
    lead: Timestep = "48h"
    norm: Literal["deviation", "energy"] = "deviation"

    runs_model: ClassVar = True

    def bind(self, members: Members) -> Changes:
        if members.run is None:
            raise ValueError(
                f"{SECTION}.type: singular vectors are computed by the command "
                "forecast alone; take gaussian, spherical, bred or lagged here"
            )
        return SingularMembers(*members.run, config=self)

    def problems(
        self, schedule: ForecastSchedule, frames: int, draws_noise: bool
    ) -> list[str]:
        if schedule.num_members == 1:
            return []
        steps, wrong, other = 0, "", "take gaussian, spherical, bred or lagged"
        try:
            steps = steps_of(self.lead, schedule.timestep, f"{SECTION}.lead")
        except ValueError as error:
            wrong = str(error)
        needed = schedule.num_members // 2
        sizes = self.std.values() if isinstance(self.std, dict) else [self.std]
        problems = {
            wrong: wrong,
            f"{SECTION}.lead: {self.lead} is longer than the forecasts, of "
            f"{counted(schedule.num_steps, 'step')} of "
            f"{duration_text(schedule.timestep)}; make it shorter, or them "
            "longer": steps > schedule.num_steps,
            f"{SECTION}.vectors: {self.vectors} perturb {2 * self.vectors} members and "
            f"the control, but inference.members is {schedule.num_members}; at least "
            f"{needed} are needed": needed > self.vectors,
            f"{SECTION}.std: got {self.std}, expected positive numbers, as singular "
            "vectors are scaled by them": min(sizes, default=0) < 0 or not any(sizes),
            f"{SECTION}.type: singular: the model draws noise, with which each "
            f"forecast has other singular vectors; {other}": draws_noise,
            f"{SECTION}.type: singular: the model reads {frames} times, and singular "
            f"vectors are those of one; {other}": frames != 1,
        }
        return [line for line, applies in problems.items() if applies]

    def cost(self, starts: str = "each start date") -> str:
        return (
            f"{SECTION}.type: singular: for {starts} some {3 * self.vectors} forecasts "
            f"of {self.lead}, with the tangent-linear model and the adjoint of each, "
            "are computed first"
        )


@dataclass(eq=False)
class SingularMembers:
    """Perturbations by singular vectors: tasks -> what is added to their states."""

    plan: ForecastPlan
    model: ParallelModel
    weights: Any  # of `Forecaster.weights`
    outputs: Outputs
    config: Singular  # number, lead and amplitude of the vectors
    _map: ForecastMap | None = None
    _vectors: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
        """Key -> (batch, level, lat, lon), what is added to the initial states."""
        starts, cached = dict.fromkeys(task.start for task in tasks), self._vectors
        self._vectors = {
            start: cached[start] if start in cached else self.vectors(start)
            for start in starts
        }
        changes: dict[str, np.ndarray] = {}
        keys = dict.fromkeys(key for start in starts for key in self._vectors[start])
        for key in keys:
            each = []
            for task in tasks:
                # Vector k is added to member 2 k + 1, subtracted from member 2 k + 2.
                number, odd = divmod(task.member - 1, 2)
                vectors = self._vectors[task.start]
                if key not in vectors or task.member == 0:
                    assert self._map is not None, "made with the first vectors"
                    each.append(np.zeros_like(self._map.state[key][0, :, 0]))
                else:
                    each.append(-vectors[key][number] if odd else vectors[key][number])
            changes[key] = np.stack(each)
        return changes

    def vectors(self, start: int) -> dict[str, np.ndarray]:
        """Key -> (vector, level, lat, lon) of a start date, of size 1."""
        schedule, config = self.plan.schedule, self.config
        lead = steps_of(config.lead, schedule.timestep, "inference.perturbation.lead")
        plan = self.plan, self.model, self.weights
        forecast = map_of_plan(*plan, lead, number=start)
        self._map = self._map or forecast
        forecast.compiled_as(self._map)
        # Means over perturbed variables, levels and area of squares, in amplitudes.
        size = self._size(forecast.state)
        norm = size
        if config.norm != "deviation":
            texts = "inference.perturbation.norm: energy", "take norm: deviation"
            energies = energy_factors(self.outputs, size, *texts)
            norm = area_weights(forecast.state, self.outputs.latitude, energies)
        vectors = singular_vectors(forecast, forecast.state, config.vectors, norm)
        initial = {key: x[:, :, 0] for key, x in vectors.initial.items()}
        factors = []
        for k in range(config.vectors):
            # A vector's size becomes 1, and its largest value positive.
            values = [(np.sqrt(size[key]) * x[k]).ravel() for key, x in initial.items()]
            joined = np.concatenate(values)
            sign = np.sign(joined[np.abs(joined).argmax()])
            factors.append(np.float32(sign / np.linalg.norm(joined)))
        scale = np.array(factors)[:, None, None, None]
        return {key: x * scale for key, x in initial.items()}

    def _size(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) weights of squares of the perturbed variables."""
        latitude, deviation = self.outputs.latitude, self.config.deviation
        sizes = {k: deviation(k, x[0, :, 0], latitude) for k, x in state.items()}
        # A constant level has no deviation in units of which it could change.
        usable = {
            key: size
            for key, size in sizes.items()
            if size is not None and (size > 0).all() and np.isfinite(size).all()
        }
        if not usable:
            raise ValueError(
                "inference.perturbation.std: no variable can be perturbed by singular "
                "vectors: each has a level without deviation, or with missing values; "
                "take another type"
            )
        share = dict.fromkeys(usable, 1 / len(usable))
        weights = area_weights(state, latitude, share)
        return {key: weights[key] / size**2 for key, size in usable.items()}
