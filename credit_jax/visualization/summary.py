"""Selected channels and lead times of scores, and the range of skillful forecasts.

Scores are the data set of `credit_jax.evaluation.scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from credit_jax.evaluation.scores import CLIMATOLOGY, FORECAST, PERSISTENCE
from credit_jax.visualization.labels import lead_text

BASELINES = (PERSISTENCE, CLIMATOLOGY)
GLOBAL = "global"
CHOSEN_DAYS = (1, 3, 5, 7, 10)
# Pressure levels in hPa that are selected.
CHOSEN_PRESSURES = (850.0, 500.0, 250.0)


def series(
    scores: xr.Dataset,
    metric: str,
    channel: str,
    *,
    system: str = FORECAST,
    region: str = GLOBAL,
) -> xr.DataArray | None:
    """Returns one metric by lead time; None if there are no values."""
    if metric not in scores:
        return None
    selected = scores[metric]
    selectors = {"channel": channel, "system": system, "region": region}
    selectors = {dim: value for dim, value in selectors.items() if dim in selected.dims}
    if any(value not in selected[dim] for dim, value in selectors.items()):
        return None
    selected = selected.sel(selectors)
    return selected if bool(selected.notnull().any()) else None


def chosen_leads(scores: xr.Dataset) -> np.ndarray:
    """Selects the lead times at CHOSEN_DAYS; if none exists, the first and the last."""
    leads = scores["prediction_timedelta"].values
    days = [np.timedelta64(round(day * 86400), "s") for day in CHOSEN_DAYS]
    chosen = [lead for lead in leads if lead in days]
    if not chosen:
        chosen = [*dict.fromkeys((leads[0], leads[-1]))] if len(leads) else []
    return np.array(chosen, leads.dtype)


def chosen_channels(scores: xr.Dataset, limit: int = 24) -> list[str]:
    """Selects channels: all if they are few, otherwise some levels of each variable.

    Args:
        scores: scores with these channels.
        limit: number of channels; of more, at most three levels of each variable are
            taken: those next to 850, 500 and 250 hPa, or, for numbers of model levels,
            those at 1/4, 1/2 and 3/4 of the levels.
    """
    channels = [str(name) for name in scores["channel"].values]
    if len(channels) <= limit:
        return channels
    chosen: list[str] = []
    variables = scores["variable"].values
    for variable in dict.fromkeys(variables.tolist()):
        names = [channels[i] for i in np.flatnonzero(variables == variable)]
        levels = scores["level"].sel(channel=names).values.astype(float)
        chosen += [names[i] for i in _three(levels)]
    return chosen


def _three(levels: np.ndarray) -> list[int]:
    """Positions of up to three levels."""
    if len(levels) <= 3:
        return [*range(len(levels))]
    if np.nanmax(levels) >= CHOSEN_PRESSURES[0]:
        near = [int(np.nanargmin(np.abs(levels - p))) for p in CHOSEN_PRESSURES]
    else:
        near = [round(part * (len(levels) - 1)) for part in (0.25, 0.5, 0.75)]
    return sorted(set(near))


@dataclass(frozen=True)
class Skillful:
    """The lead times up to which a channel has a smaller RMSE than a baseline.

    Attributes:
        until: the last lead time before the RMSE is first not smaller; None if it is
            not smaller at the first lead time.
        to_the_end: whether `until` is the last lead time.
        returns: whether the RMSE is smaller again at a later lead time.
    """

    until: np.timedelta64 | None
    to_the_end: bool
    returns: bool = False

    @property
    def text(self) -> str:
        """Text for a table.

        >>> Skillful(np.timedelta64(72, "h"), True).text
        '≥ 3 d'
        """
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
    ours = series(scores, "rmse", channel, region=region)
    theirs = series(scores, "rmse", channel, system=baseline, region=region)
    if ours is None or theirs is None:
        return None
    known = (ours.notnull() & theirs.notnull()).values
    leads = ours["prediction_timedelta"].values[known]
    if not len(leads):
        return None
    better = ours.values[known] < theirs.values[known]
    if better.all():
        return Skillful(leads[-1], True)
    first = int(np.argmin(better))
    until = leads[first - 1] if first else None
    return Skillful(until, False, bool(better[first:].any()))
