"""Score cards: difference from a baseline in percent, by channel and lead time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.evaluation.scores import FORECAST
from credit_jax.visualization.canvas import Panel
from credit_jax.visualization.labels import lead_text
from credit_jax.visualization.summary import GLOBAL

MAX_LEADS = 20
# Differences beyond this have the same color.
MAX_PERCENT = 50.0
# Metrics of which a smaller value is better.
ERRORS = ("rmse", "mae", "crps")


def differences(
    scores: xr.Dataset,
    baseline: str | xr.Dataset,
    *,
    metric: str = "rmse",
    region: str = GLOBAL,
) -> Float[xr.DataArray, "channel lead"]:
    """Returns 100 (forecast / baseline - 1), in percent; negative is better.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        baseline: a system of these scores, or the scores of another forecast; the
            common channels and lead times are compared.
        metric: one of ERRORS.
        region: name of the region.

    Raises:
        ValueError: the two have no channel or no lead time in common, or the baseline
            has no values.
        KeyError: the metric, the system or the region does not exist.
    """
    ours = scores[metric].sel(system=FORECAST, region=region, drop=True)
    if isinstance(baseline, str):
        theirs = scores[metric].sel(system=baseline, region=region, drop=True)
    else:
        theirs = baseline[metric].sel(system=FORECAST, region=region, drop=True)
    ours, theirs = xr.align(ours, theirs, join="inner")
    if not ours.size:
        raise ValueError("the two forecasts have no channel and lead time in common")
    if not bool((ours.notnull() & theirs.notnull()).any()):
        raise ValueError(f"the baseline has no {metric} beside that of the forecast")
    percent = 100 * (ours / theirs.where(theirs > 0) - 1)
    return percent.transpose("channel", "prediction_timedelta")


def card_panel(
    difference: Float[xr.DataArray, "channel lead"], title: str, names: Sequence[str]
) -> Panel:
    """Returns the score card of `differences`, with at most MAX_LEADS lead times.

    Args:
        difference: difference in percent.
        title: title of the card.
        names: names of the channels.
    """
    num = difference.sizes["prediction_timedelta"]
    places = np.unique(np.linspace(0, num - 1, min(num, MAX_LEADS)).round().astype(int))
    shown = difference.isel(prediction_timedelta=places)
    height = 0.9 + 0.24 * shown.sizes["channel"]
    width = 1.7 + 0.07 * max(map(len, names), default=0) + 0.52 * len(places)
    return Panel(title, _drawer(shown, names), width, height)


def _drawer(shown: xr.DataArray, names: Sequence[str]) -> Any:
    values = shown.values
    leads = [lead_text(lead) for lead in shown["prediction_timedelta"].values]

    def draw(axis: Any) -> None:
        limits = {"vmin": -MAX_PERCENT, "vmax": MAX_PERCENT}
        image = axis.pcolormesh(
            np.ma.masked_invalid(values),
            cmap="RdBu_r",
            edgecolors="#80808060",
            linewidth=0.5,
            **limits,
        )
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                behind = image.to_rgba(value)
                axis.text(
                    column + 0.5,
                    row + 0.5,
                    percent_text(value),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=legible_on(behind[:3]),
                )
        long = max(map(len, leads)) > 5
        axis.set_xticks(np.arange(len(leads)) + 0.5, leads, rotation=60 if long else 0)
        axis.set_yticks(np.arange(len(values)) + 0.5, names)
        axis.tick_params(length=0)
        axis.invert_yaxis()
        axis.set_xlabel("lead time")
        look = {"shrink": min(1.0, 8 / len(values)), "anchor": (0.0, 1.0), "aspect": 20}
        axis.figure.colorbar(image, ax=axis, extend="both", label="%", **look)

    return draw


def legible_on(color: Sequence[float]) -> str:
    """Returns black or white, the one with more contrast to a color (WCAG 2.2).

    >>> legible_on((0.6, 0.0, 0.1)), legible_on((0.9, 0.6, 0.5))
    ('white', 'black')

    Args:
        color: red, green and blue of sRGB, from 0 to 1.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color
    ]
    luminance = float(np.dot((0.2126, 0.7152, 0.0722), linear))
    # (1 + 0.05) / (luminance + 0.05) is the contrast of white.
    return "white" if (luminance + 0.05) ** 2 < 1.05 * 0.05 else "black"


def percent_text(value: float) -> str:
    """Formats a difference for a cell of a card: `-12`, `+3`, `+0.4`, `>999`.

    >>> percent_text(-12.3), percent_text(0.44), percent_text(1e5)
    ('-12', '+0.4', '>999')
    """
    if value > 999:
        return ">999"
    return f"{value:+.1f}" if abs(value) < 0.95 else f"{value:+.0f}"
