"""Score cards: difference from a baseline in percent, by channel and lead time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.evaluation.scores import FORECAST, LEAD
from credit_jax.extensions.plots.canvas import Panel, lead_text
from credit_jax.extensions.plots.summary import GLOBAL

MAX_LEADS = 20
# Differences beyond this have the same color.
MAX_PERCENT = 50.0
_COLORS: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -MAX_PERCENT, "vmax": MAX_PERCENT}
# Metrics of which a smaller value is better.
ERRORS = ("rmse", "mae", "crps")


def differences(
    scores: xr.Dataset,
    baseline: str | xr.Dataset,
    *,
    metric: str = "rmse",
    region: str = GLOBAL,
) -> Float[xr.DataArray, "channel lead"]:
    """Returns 100 (forecast / baseline - 1), in percent; negative is better."""
    is_system = isinstance(baseline, str)
    system, others = (baseline, scores) if is_system else (FORECAST, baseline)
    errors, base = xr.align(
        scores[metric].sel(system=FORECAST, region=region, drop=True),
        others[metric].sel(system=system, region=region, drop=True),
        join="inner",
    )
    if not errors.size:
        raise ValueError("the two forecasts have no channel and lead time in common")
    if not bool((errors.notnull() & base.notnull()).any()):
        raise ValueError(f"the baseline has no {metric} beside that of the forecast")
    percent = 100 * (errors / base.where(base > 0) - 1)
    return percent.transpose("channel", LEAD)


def tabled_leads(difference: xr.DataArray) -> Float[xr.DataArray, "channel lead"]:
    """The differences at up to MAX_LEADS lead times, evenly spaced."""
    num = difference.sizes[LEAD]
    spaced = np.unique(np.linspace(0, num - 1, min(num, MAX_LEADS)).round().astype(int))
    return difference.isel({LEAD: spaced})


def card_rows(
    difference: Float[xr.DataArray, "channel lead"], names: Sequence[str]
) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Returns name and cells of each channel; a cell is text, color, and its ink."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_hex

    limits = Normalize(_COLORS["vmin"], _COLORS["vmax"])
    scale: Any = ScalarMappable(limits, _COLORS["cmap"])

    def cell(value: float) -> tuple[str, str, str]:
        if not np.isfinite(value):
            return "", "none", "inherit"
        color = scale.to_rgba(value)[:3]
        return percent_text(value), to_hex(color), legible_on(color)

    rows = [[cell(value) for value in row] for row in difference.values]
    return [*zip(names, rows, strict=True)]


def card_panel(
    difference: Float[xr.DataArray, "channel lead"], title: str, names: Sequence[str]
) -> Panel:
    """Returns the score card of `differences`, with at most MAX_LEADS lead times."""
    difference = tabled_leads(difference)
    values = difference.values
    leads = [lead_text(lead) for lead in difference[LEAD].values]

    def draw(axis: Any) -> None:
        image = axis.pcolormesh(
            np.ma.masked_invalid(values),
            edgecolors="#80808060",
            linewidth=0.5,
            **_COLORS,
        )
        look = {"ha": "center", "va": "center", "fontsize": 7}
        for row, (_, cells) in enumerate(card_rows(difference, names)):
            for column, (text, _, ink) in enumerate(cells):
                if text:
                    axis.text(column + 0.5, row + 0.5, text, color=ink, **look)
        long = max(map(len, leads)) > 5
        axis.set_xticks(np.arange(len(leads)) + 0.5, leads, rotation=60 if long else 0)
        axis.set_yticks(np.arange(len(values)) + 0.5, names)
        axis.tick_params(length=0)
        axis.invert_yaxis()
        axis.set_xlabel("lead time")
        look = {"shrink": min(1.0, 8 / len(values)), "anchor": (0.0, 1.0), "aspect": 20}
        axis.figure.colorbar(image, ax=axis, extend="both", label="%", **look)

    height = 0.9 + 0.24 * len(values)
    width = 1.7 + 0.07 * max(map(len, names), default=0) + 0.52 * len(leads)
    return Panel(title, draw, width, height)


def legible_on(color: Sequence[float]) -> str:
    """Returns black or white, the one with more contrast to a color (WCAG 2.2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color
    ]
    luminance = float(np.dot((0.2126, 0.7152, 0.0722), linear))
    # (1 + 0.05) / (luminance + 0.05) is the contrast of white.
    return "white" if (luminance + 0.05) ** 2 < 1.05 * 0.05 else "black"


def percent_text(value: float) -> str:
    """Formats a difference for a cell of a card: `-12`, `+3`, `+0.4`, `>999`."""
    if value > 999:
        return ">999"
    return f"{value:+.1f}" if abs(value) < 0.95 else f"{value:+.0f}"
