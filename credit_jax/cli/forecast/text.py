"""What `forecast` prints before and after the forecasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from credit_jax.checkpoint.choice import label_of
from credit_jax.config.messages import counted
from credit_jax.forecast.summary import Summary
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.package import Package
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.training.run_weights import RunWeights


def header(
    source: str,
    plan: ForecastPlan,
    model: ParallelModel,
    checkpoint: RunWeights | Package,
) -> list[str]:
    """Lines printed before the forecasts: source, mesh, start dates, length."""
    schedule, axes = plan.schedule, model.axes
    count, (first, last) = len(schedule.starts), schedule.starts[[0, -1]]
    dates = f"{count} from {_minute(first)} to {_minute(last)}"
    hours = schedule.timestep / np.timedelta64(1, "h")
    weights = label_of(average=checkpoint.average)
    devices = model.mesh.devices.reshape(-1)
    return [
        f"credit_jax  forecasts of {source}, checkpoint {checkpoint.step} ({weights})",
        f"mesh   {axes.summary} on "
        f"{counted(len(devices), f'{devices[0].platform} device')}",
        f"dates  {_minute(first) if count == 1 else dates}, "
        f"{counted(schedule.num_members, 'member')}, "
        f"{counted(schedule.num_steps, 'step')} of {hours:g} h",
    ]


def footer(summary: Summary, folder: Path) -> list[str]:
    """Lines printed after the forecasts: counts, times, missing values."""
    times = summary.times
    lines = [
        f"{counted(summary.num_forecasts, 'forecast')} made, in {folder}"
        + (f", {summary.num_done} found there" if summary.num_done else ""),
    ]
    if summary.num_forecasts:
        lines.append(
            f"unroll {times.unroll:.2f} s, read {times.read:.2f} s, "
            f"write {times.write:.2f} s beside each other; devices idle "
            f"{100 * times.idle:.1f} % of the {times.total:.2f} s since the first step"
        )
    if summary.stopped:
        lines.append(
            f"Stopped by {summary.stopped}; --resume makes those that are missing "
            f"(exit code {RESUME})"
        )
    if summary.missing:
        listed = ", ".join(f"{name} {n}" for name, n in summary.missing.items())
        lines.append(f"values that are not finite, written as missing: {listed}")
    return lines


def _minute(time: np.datetime64) -> str:
    return str(time)[:16]
