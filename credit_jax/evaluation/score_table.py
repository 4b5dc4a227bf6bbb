"""A short table of scores, to print."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from rich.table import Table

from credit_jax.config.dates import duration
from credit_jax.evaluation.scores import (
    CLIMATOLOGY,
    FORECAST,
    LEAD,
    PERSISTENCE,
    SYSTEM,
)

_SHOWN = (FORECAST, PERSISTENCE, CLIMATOLOGY)
MAX_LEADS = 4


def score_table(scores: xr.Dataset, leads: Sequence[str] = ()) -> Table:
    """RMSE over the globe of each variable, the mean square over its levels.

    Args:
        scores: the data set.
        leads: lead times; by default some up to the last one.
    """
    rmse = scores["rmse"].sel(region="global")
    squares = (rmse**2).groupby("variable").mean()
    places = _places(scores[LEAD].values, leads)
    systems = [own for own in _SHOWN if own in scores[SYSTEM].values]
    members = int(scores.attrs.get("num_members", 1))
    what = f"mean of {members} members" if members > 1 else "forecast"
    table = Table(
        title=f"RMSE of {scores.attrs['num_start_dates']} start date(s), global: {what}"
        f" | {' | '.join(systems[1:])}; green: below all others",
        title_justify="left",
    )
    table.add_column("variable")
    for place in places:
        table.add_column(_lead(scores[LEAD].values[place]), justify="right")
    for name in dict.fromkeys(scores["variable"].values.tolist()):
        own = squares.sel(variable=name).isel({LEAD: places})
        values = [np.sqrt(own.sel({SYSTEM: system}).values) for system in systems]
        table.add_row(name, *(_cell(column) for column in np.stack(values, axis=1)))
    return table


def _cell(values: np.ndarray) -> str:
    texts = [f"{value:.3g}" for value in values]
    best = len(values) > 1 and bool(values[0] < np.nanmin(values[1:]))
    texts[0] = f"[green]{texts[0]}[/]" if best else texts[0]
    return " | ".join(texts)


def _places(there: np.ndarray, leads: Sequence[str]) -> list[int]:
    if not leads:
        count = min(len(there), MAX_LEADS)
        spaced = np.linspace(0, len(there) - 1, count + 1)[1:] if count > 1 else [0]
        return sorted({round(float(place)) for place in spaced})
    wanted = [np.timedelta64(duration(lead)) for lead in leads]
    return [int(np.argmin(np.abs(there - own))) for own in wanted]


def _lead(value: np.timedelta64) -> str:
    hours = value / np.timedelta64(1, "h")
    return f"{hours / 24:g} d" if hours % 24 == 0 else f"{hours:g} h"
