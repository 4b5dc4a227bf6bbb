"""The perturbations of a plan, on the mesh of its model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from credit_jax.data.forecast_reader import ForecastReader
from credit_jax.data.schedule import steps_of
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.member_noise import MemberNoise
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.perturbation import (
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


def perturbed_reader(
    plan: ForecastPlan,
    step: ForecastStep,
    weights: Any,
    outputs: Outputs,
    members: MemberNoise | None = None,
) -> ForecastReader:
    """The reader of a plan with the perturbations of its members.

    Args:
        plan: selects the perturbation and the members.
        step: step of the forecasts.
        weights: weights of the model.
        outputs: has the coordinates of the grid.
        members: noise of models that draw noise.
    """
    if plan.schedule.num_members == 1:
        return plan.reader
    config = plan.inference.perturbation
    noise: NoisePerturbation = noise_perturbation(
        config, plan.config.seed, plan.schedule, outputs.latitude, outputs.longitude
    )
    if config.type in ("gaussian", "spherical"):
        return replace(plan.reader, perturb=noise)
    keys = [*plan.schema.target_slices()]
    spin_up = SpinUp(prognostic(step, keys), weights, plan.reader, members)
    if config.type == "bred":
        make: Any = BredVectors(spin_up, noise, noise.amplitude, config.num_cycles)
    else:
        make = LaggedStarts(spin_up, steps_of(config.lag, plan.schedule))
    return replace(plan.reader, perturb=PreparedPerturbation(make))
