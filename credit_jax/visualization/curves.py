"""Curves of scores by lead time: forecast, persistence and climatology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.evaluation.scores import CLIMATOLOGY, FORECAST, LEAD, PERSISTENCE
from credit_jax.visualization.charts import Chart, Line
from credit_jax.visualization.labels import (
    channel_text,
    channel_units,
    days_of,
    with_units,
)
from credit_jax.visualization.summary import BASELINES, GLOBAL

# Colors distinguishable on white, on black, and with most color deficiencies.
LOOKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        FORECAST: {"color": "#2f7ed8", "linewidth": 2.0},
        PERSISTENCE: {"color": "#d9822b", "linestyle": "--"},
        CLIMATOLOGY: {"color": "#8a8f98", "linestyle": "-."},
        "spread": {"color": "#2f9e5b", "linestyle": ":"},
    }
)
# Metrics without units.
RATIOS = ("acc", "spread_skill_ratio", "missing")
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "rmse": "RMSE",
        "mae": "MAE",
        "bias": "bias",
        "acc": "ACC",
        "activity": "activity",
        "crps": "CRPS",
        "spread": "spread",
        "spread_skill_ratio": "spread / skill",
        "missing": "missing",
    }
)


def curve_charts(
    scores: xr.Dataset,
    channels: Sequence[str],
    *,
    metric: str = "rmse",
    region: str = GLOBAL,
) -> dict[str, Chart]:
    """Returns the chart of each channel that has the metric, by channel.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        channels: labels of the channels.
        metric: one of NAMES; for "rmse" of an ensemble the spread is drawn, too.
        region: name of the region.
    """
    by_system = {
        system: _by_channel(scores, metric, system, region)
        for system in (FORECAST, *BASELINES)
    }
    if metric == "rmse":
        by_system["spread"] = _by_channel(scores, "spread", FORECAST, region)
    days = days_of(scores["prediction_timedelta"].values)
    charts = {}
    for channel in channels:
        place = scores.get_index("channel").get_loc(channel)
        if not np.isfinite(by_system[FORECAST][place]).any():
            continue
        lines = [
            Line(name, days, values[place], LOOKS[name], has_markers=len(days) <= 12)
            for name, values in by_system.items()
            if np.isfinite(values[place]).any()
        ]
        units = "" if metric in RATIOS else channel_units(scores, channel)
        title = f"{NAMES[metric]} of {channel_text(scores, channel)}"
        charts[channel] = Chart(
            with_units(title, units),
            "lead time (days)",
            lines,
            y_from=None if metric in (*RATIOS, "bias") else 0.0,
            level=0.0 if metric == "bias" else None,
        )
    return charts


def _by_channel(
    scores: xr.Dataset, metric: str, system: str, region: str
) -> Float[np.ndarray, "channel lead"]:
    """A metric of a system in a region; NaN if it is not known."""
    if metric not in scores or system not in scores["system"].values:
        return np.full((scores.sizes["channel"], scores.sizes[LEAD]), np.nan)
    selected = scores[metric].sel(system=system, region=region)
    return selected.transpose("channel", LEAD).values
