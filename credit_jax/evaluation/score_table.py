"""A short table of scores for the console."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from rich.box import HORIZONTALS
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from credit_jax.config.dates import duration
from credit_jax.config.messages import counted, printable
from credit_jax.evaluation.scores import (
    CLIMATOLOGY,
    FORECAST,
    LEAD,
    PERSISTENCE,
    SYSTEM,
    seen_in_training,
)

_SHOWN = (FORECAST, PERSISTENCE, CLIMATOLOGY)
MAX_LEADS = 5


def score_table(scores: xr.Dataset, leads: Sequence[str] = ()) -> Table:
    """Global RMSE of each variable; of several levels the root mean square over them.

    The table says so, has the units, and says whether dates are in the training period.
    The forecast is green where it is below all others.

    Args:
        scores: the data set.
        leads: lead times, "24h"; by default up to MAX_LEADS, evenly spaced.
    """
    rmse = scores["rmse"].sel(region="global")
    squares = (rmse**2).groupby("variable").mean()
    places = _places(scores[LEAD].values, leads)
    systems = [system for system in _SHOWN if system in scores[SYSTEM].values]
    members = int(scores.attrs.get("num_members", 1))
    what = f", mean of {members} members" if members > 1 else ""
    dates = counted(int(scores.attrs["num_start_dates"]), "start date")
    counts = scores["variable"].to_series().value_counts()
    levels = "" if counts.max() == 1 else "; root mean square over the levels"
    seen = escape(printable(seen_in_training(scores)))
    title = f"RMSE, global, {dates}{what}{levels}{f'; {seen}' if seen else ''}"
    table = Table(title=title, title_justify="left", box=HORIZONTALS)
    table.add_column("variable", no_wrap=True)
    table.add_column("system", min_width=max(map(len, systems)))
    for place in places:
        table.add_column(_lead(scores[LEAD].values[place]), justify="right")
    for name in dict.fromkeys(scores["variable"].values.tolist()):
        errors = squares.sel(variable=name).isel({LEAD: places})
        values = np.sqrt(np.stack([errors.sel({SYSTEM: k}).values for k in systems]))
        for row, system in enumerate(systems):
            cells = [_cell(column, row) for column in values.T]
            last = system == systems[-1]
            heads = _heads(scores, name, len(systems))
            head = Text(printable(heads[row]))  # names of files, no markup
            table.add_row(head, system, *cells, end_section=last)
    return table


def _heads(scores: xr.Dataset, variable: str, num_rows: int) -> list[str]:
    """Variable, its units, and its number of levels if there are several, by row."""
    is_variable = scores["variable"].values == variable
    units = (
        str(scores["units"].values[is_variable][0]) if "units" in scores.coords else ""
    )
    levels = f"{is_variable.sum()} levels" if is_variable.sum() > 1 else ""
    parts = [variable, *(part for part in (units, levels) if part not in ("", "1"))]
    rows = [*parts[: num_rows - 1], ", ".join(parts[num_rows - 1 :])]
    return rows + [""] * (num_rows - len(rows))


def _cell(values: np.ndarray, row: int) -> str:
    """The value of a system; green if it is the forecast's and the lowest."""
    text = f"{values[row]:.3g}"
    best = row == 0 and len(values) > 1 and bool(values[0] < values[1:].min())
    return f"[green]{text}[/]" if best else text


def _places(available: np.ndarray, leads: Sequence[str]) -> list[int]:
    if not leads:
        spaced = np.linspace(0, len(available) - 1, min(len(available), MAX_LEADS))
        return sorted({round(float(place)) for place in spaced})
    requested = [np.timedelta64(duration(lead)) for lead in leads]
    return [int(np.argmin(np.abs(available - value))) for value in requested]


def _lead(value: np.timedelta64) -> str:
    hours = value / np.timedelta64(1, "h")
    return f"{hours / 24:g} d" if hours % 24 == 0 else f"{hours:g} h"
