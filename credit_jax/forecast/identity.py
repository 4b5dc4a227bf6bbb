"""What determines the values of forecasts."""

from __future__ import annotations

from typing import Any

from credit_jax.models.parallel_model import ParallelModel
from credit_jax.plan.forecast import ForecastPlan

# Keys of the data section that training alone reads.
_OF_TRAINING = (
    "forecast_len",
    "backprop_on_timestep",
    "data_clamp",
    "on_bad_sample",
    "on_outlier",
)
# Keys of `inference.output` that determine what is written, and what is scored.
_WRITTEN = {
    "netcdf": ("output_interval", "variables", "metadata", "group_by", "encoding"),
    "zarr": ("output_interval", "variables", "metadata"),
    "none": ("output_interval", "variables"),
}
_PERTURBATION = {
    "gaussian": ("type", "std"),
    "spherical": ("type", "std", "length_scale"),
    "bred": ("type", "std", "num_cycles"),
    "lagged": ("type", "lag"),
    "singular": ("type", "std", "vectors", "lead"),
}


def identity_of(
    plan: ForecastPlan, model: ParallelModel, form: str = "none"
) -> dict[str, Any]:
    """Returns what determines the values of the forecasts of a plan, by name.

    The weights are not part of it. Keys of the config that change no value are left
    out, so that a campaign can be resumed with other ones.

    Args:
        plan: plan, as returned by `plan_forecast`.
        model: model of the plan.
        form: "netcdf", "zarr" or "none".
    """
    sections, schedule = plan.sections(), plan.schedule
    data = {k: v for k, v in sections["data"].items() if k not in _OF_TRAINING}
    identity = {**sections, "data": data}
    if schedule.num_members > 1:
        perturbation = plan.inference.perturbation.model_dump(mode="json")
        identity["perturbation"] = {
            k: perturbation[k] for k in _PERTURBATION[perturbation["type"]]
        }
    elif not model.model_def.draws_noise:
        del identity["seed"]
    output = plan.inference.output.model_dump(mode="json")
    return {
        **identity,
        "start dates": [str(time) for time in schedule.starts],
        "steps": schedule.num_steps,
        "members": schedule.num_members,
        "output": {key: output[key] for key in _WRITTEN[form]},
    }
