"""Selected channels and lead times of scores, and the range of skillful forecasts.

Scores are the data set of `credit_jax.evaluation.scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.evaluation.scores import (
    CHANNEL,
    CLIMATOLOGY,
    FORECAST,
    LEAD,
    PERSISTENCE,
    REGION,
    SYSTEM,
)
from credit_jax.extensions.plots.canvas import lead_text

BASELINES = (PERSISTENCE, CLIMATOLOGY)
GLOBAL = "global"
CHOSEN_DAYS = (1, 3, 5, 7, 10)
# Pressure levels in hPa that are selected.
CHOSEN_PRESSURES = (850.0, 500.0, 250.0)


def values_of(
    scores: xr.Dataset, metric: str, system: str = FORECAST
) -> Float[xr.DataArray, "channel region lead"]:
    """Returns a metric of a system; NaN if there is none."""
    dims = (CHANNEL, REGION, LEAD)
    if metric in scores and system in scores[SYSTEM].values:
        return scores[metric].sel(system=system).transpose(*dims)
    sizes = [scores.sizes[dim] for dim in dims]
    return xr.DataArray(np.full(sizes, np.nan), {d: scores[d] for d in dims}, dims)


def chosen_leads(scores: xr.Dataset) -> np.ndarray:
    """Selects the lead times at CHOSEN_DAYS; if none exists, the first and the last."""
    leads = scores["prediction_timedelta"].values
    days = [np.timedelta64(round(day * 86400), "s") for day in CHOSEN_DAYS]
    chosen = [lead for lead in leads if lead in days]
    if not chosen:
        chosen = [*dict.fromkeys((leads[0], leads[-1]))] if len(leads) else []
    return np.array(chosen, leads.dtype)


def chosen_channels(scores: xr.Dataset, limit: int = 24) -> list[str]:
    """Selects channels: all up to a limit, otherwise up to three levels a variable."""
    channels = [str(name) for name in scores["channel"].values]
    if len(channels) <= limit:
        return channels
    chosen: list[str] = []
    variables = scores["variable"].values
    for variable in dict.fromkeys(variables.tolist()):
        names = [channels[i] for i in np.flatnonzero(variables == variable)]
        levels = scores["level"].sel(channel=names).values.astype(float)
        if len(levels) <= 3:
            near = range(len(levels))
        elif np.nanmax(levels) >= CHOSEN_PRESSURES[0]:
            near = (int(np.nanargmin(np.abs(levels - p))) for p in CHOSEN_PRESSURES)
        else:
            # Numbers of model levels.
            near = (round(part * (len(levels) - 1)) for part in (0.25, 0.5, 0.75))
        chosen += [names[i] for i in sorted(set(near))]
    return chosen


@dataclass(frozen=True)
class Skillful:
    """Until when a channel has a smaller RMSE than a baseline; None if never."""

    until: np.timedelta64 | None
    to_the_end: bool  # `until` is the last lead time
    returns: bool = False  # it is smaller again later

    @property
    def text(self) -> str:
        """Text for a table."""
        if self.until is None:
            return "never" if not self.returns else "not at first"
        return f"{'≥ ' if self.to_the_end else ''}{lead_text(self.until)}"

    @property
    def days(self) -> float:
        """Sort key in days."""
        if self.until is None:
            return 0.0
        return float(self.until / np.timedelta64(1, "D")) + 0.001 * self.to_the_end


def skillful_until(
    scores: xr.Dataset, channel: str, baseline: str, *, region: str = GLOBAL
) -> Skillful | None:
    """Returns until when a channel beats a baseline; None if there are no values."""
    errors, base = (
        values_of(scores, "rmse", system).sel(channel=channel, region=region).values
        for system in (FORECAST, baseline)
    )
    both = np.isfinite(errors) & np.isfinite(base)
    leads = scores[LEAD].values[both]
    if not len(leads):
        return None
    better = errors[both] < base[both]
    if better.all():
        return Skillful(leads[-1], True)
    first = int(np.argmin(better))
    until = leads[first - 1] if first else None
    return Skillful(until, False, bool(better[first:].any()))
