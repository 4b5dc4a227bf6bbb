"""The perturbations of a plan, on the mesh of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from credit_jax.config.inference import PerturbationConfig
from credit_jax.data.forecast_reader import ForecastReader
from credit_jax.data.schedule import Task, steps_of
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.perturbation import (
    MemberNoise,
    NoisePerturbation,
    PreparedPerturbation,
    noise_perturbation,
)
from credit_jax.forecast.spin_up import (
    BredVectors,
    LaggedStarts,
    SpinUp,
    prognostic,
)
from credit_jax.plan.forecast import ForecastPlan

# Tasks -> {key: (batch, level, lat, lon) to add}.
Changes = Callable[[Sequence[Task]], Mapping[str, np.ndarray]]


def perturbed_reader(
    plan: ForecastPlan,
    step: ForecastStep,
    weights: Any,
    outputs: Outputs,
    members: MemberNoise | None = None,
    changes: Changes | None = None,
) -> ForecastReader:
    """The reader of a plan with the perturbations of its members.

    Args:
        plan: selects the perturbation and the members.
        step: step of the forecasts.
        weights: weights of the model.
        outputs: has the coordinates of the grid.
        members: noise of models that draw noise.
        changes: what is added to the states of tasks, instead of the perturbation that
            the plan selects.
    """
    if plan.schedule.num_members == 1:
        return plan.reader
    if changes is not None:
        return replace(plan.reader, perturb=PreparedPerturbation(changes))
    step = prognostic(step, [*plan.schema.target_slices()])
    perturb = perturbation(
        plan.inference.perturbation,
        plan.config.seed,
        SpinUp(step, weights, plan.reader, members),
        (outputs.latitude, outputs.longitude),
    )
    if not isinstance(perturb, NoisePerturbation):
        perturb = PreparedPerturbation(perturb)
    return replace(plan.reader, perturb=perturb)


def perturbation(
    config: PerturbationConfig,
    seed: int,
    spin_up: SpinUp,
    grid: tuple[np.ndarray, np.ndarray],
) -> NoisePerturbation | BredVectors | LaggedStarts:
    """The perturbation of the members of a schedule.

    Args:
        config: type and amplitude of the perturbation.
        seed: seed of all members.
        spin_up: runs the model before the start dates of its schedule.
        grid: latitudes and longitudes of the model, degrees.

    Raises:
        ValueError: it is that of singular vectors, which need more than a forecast.
    """
    refuse_singular(config)
    schedule = spin_up.reader.schedule
    noise = noise_perturbation(config, seed, schedule, *grid)
    if config.type == "bred":
        return BredVectors(spin_up, noise, noise.amplitude, config.num_cycles)
    if config.type == "lagged":
        where = "inference.perturbation.lag"
        lag = steps_of(config.lag, schedule.timestep, where)
        return LaggedStarts(spin_up, lag)
    return noise


def refuse_singular(config: PerturbationConfig) -> None:
    """Raises a ValueError for singular vectors, which need more than forecasts."""
    if config.type == "singular":
        raise ValueError(
            "inference.perturbation.type: singular vectors are computed by the command "
            "forecast alone; take gaussian, spherical, bred or lagged here"
        )
