"""Curves of scores by lead time: forecast, persistence and climatology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import xarray as xr

from credit_jax.evaluation.scores import CLIMATOLOGY, FORECAST, PERSISTENCE
from credit_jax.visualization.labels import channel_units, days_of
from credit_jax.visualization.panels import Panel
from credit_jax.visualization.summary import (
    BASELINES,
    GLOBAL,
    series,
)

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


def curve_panels(
    scores: xr.Dataset,
    channels: Sequence[str],
    *,
    metric: str = "rmse",
    region: str = GLOBAL,
) -> list[Panel]:
    """Returns a panel for each channel that has the metric.

    Args:
        scores: of `credit_jax.evaluation.scores`.
        channels: labels of the channels.
        metric: one of NAMES; for "rmse" of an ensemble the spread is drawn, too.
        region: name of the region.
    """
    return [
        Panel(_title(scores, channel, metric), _drawer(scores, channel, metric, region))
        for channel in channels
        if series(scores, metric, channel, region=region) is not None
    ]


def _title(scores: xr.Dataset, channel: str, metric: str) -> str:
    units = "" if metric in RATIOS else channel_units(scores, channel)
    return f"{NAMES[metric]} of {channel}" + (f" ({units})" if units else "")


def _drawer(scores: xr.Dataset, channel: str, metric: str, region: str) -> Any:
    lines = {
        system: series(scores, metric, channel, system=system, region=region)
        for system in (FORECAST, *BASELINES)
    }
    if metric == "rmse":
        lines["spread"] = series(scores, "spread", channel, region=region)

    def draw(axis: Any) -> None:
        for name, line in lines.items():
            if line is not None:
                days = days_of(line["prediction_timedelta"])
                marker = "o" if len(days) <= 12 else None
                look = {"marker": marker, "markersize": 3.0, **LOOKS[name]}
                axis.plot(days, line.values, label=name, **look)
        axis.set_xlabel("lead time (days)")
        axis.set_xlim(left=0)
        if metric == "bias":
            axis.axhline(0, color="#8a8f98", linewidth=0.8)
        elif metric not in RATIOS:
            axis.set_ylim(bottom=0)
        axis.grid(True)

    return draw
