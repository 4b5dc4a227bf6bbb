"""Checks of the perturbations of an ensemble's members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from credit_jax.config.dates import duration_text
from credit_jax.config.inference import PerturbationConfig
from credit_jax.config.messages import counted
from credit_jax.data import ChannelSchema
from credit_jax.data.schedule import ForecastSchedule, steps_of
from credit_jax.models.common.config import ModelConfig
from credit_jax.plan.findings import Findings


def check_perturbation(
    config: PerturbationConfig,
    schedule: ForecastSchedule,
    schema: ChannelSchema,
    model: ModelConfig,
    findings: Findings,
) -> None:
    """Checks what perturbs the members of forecasts.

    Args:
        config: config of the perturbation.
        schedule: members and length of the forecasts.
        schema: channels of the model.
        model: validated config of the model.
        findings: receives problems, and what singular vectors cost.
    """
    findings.problems += unknown_variables(config, schema.target_slices())
    if config.type == "singular" and schedule.num_members > 1:
        findings.problems += singular_problems(config, schedule, model)
        starts = counted(len(schedule.starts), "start date")
        findings.notes.append(singular_cost(config, f"each of {starts}"))


def singular_cost(config: PerturbationConfig, each: str = "each start date") -> str:
    """What perturbations by singular vectors cost, for notes."""
    return (
        f"inference.perturbation.type: singular: for {each} some {3 * config.vectors} "
        f"forecasts of {config.lead}, with the tangent-linear model and the adjoint of "
        "each, are computed first"
    )


def singular_problems(
    config: PerturbationConfig, schedule: ForecastSchedule, model: ModelConfig
) -> list[str]:
    """Why members cannot be perturbed by singular vectors, a line each.

    Args:
        config: config of the perturbation.
        schedule: members and length of the forecasts.
        model: validated config of the model.
    """
    where, problems = "inference.perturbation", list[str]()
    try:
        steps = steps_of(config.lead, schedule.timestep, f"{where}.lead")
    except ValueError as error:
        problems.append(str(error))
    else:
        if steps > schedule.num_steps:
            problems.append(
                f"{where}.lead: {config.lead} is longer than the forecasts, of "
                f"{counted(schedule.num_steps, 'step')} of "
                f"{duration_text(schedule.timestep)}; make it shorter, or them longer"
            )
    needed = schedule.num_members // 2
    if needed > config.vectors:
        problems.append(
            f"{where}.vectors: {config.vectors} perturb {2 * config.vectors} members "
            f"and the control, but inference.members is {schedule.num_members}; at "
            f"least {needed} are needed"
        )
    sizes = config.std.values() if isinstance(config.std, Mapping) else [config.std]
    if min(sizes, default=0) < 0 or not any(sizes):
        problems.append(
            f"{where}.std: got {config.std}, expected positive numbers, as singular "
            "vectors are scaled by them"
        )
    if model.draws_noise:
        problems.append(
            f"{where}.type: singular: the model draws noise, with which each forecast "
            "has other singular vectors; take gaussian, spherical, bred or lagged"
        )
    if model.x.frames != 1:
        problems.append(
            f"{where}.type: singular: the model reads {model.x.frames} times, and "
            "singular vectors are those of one; take gaussian, spherical, bred or "
            "lagged"
        )
    return problems


def unknown_variables(config: PerturbationConfig, keys: Iterable[str]) -> list[str]:
    """What is wrong with the names of `std`, one line at most.

    Args:
        config: config of the perturbation.
        keys: keys of the predicted variables.
    """
    by_name = config.std if isinstance(config.std, Mapping) else {}
    parts = [key.split("/") for key in keys]
    known = dict.fromkeys(name for _, kind, _, name in parts if kind == "prognostic")
    unknown = [name for name in by_name if name not in known]
    if not unknown:
        return []
    return [
        f"inference.perturbation.std: {', '.join(unknown)}: no prognostic variable; "
        f"there are: {', '.join(known)}"
    ]
