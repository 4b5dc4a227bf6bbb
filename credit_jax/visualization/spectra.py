"""Zonal energy spectra by wavenumber, and rank histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.evaluation.scores import FORECAST, MEMBERS, TRUTH, WAVENUMBER
from credit_jax.visualization.labels import lead_text
from credit_jax.visualization.panels import Panel
from credit_jax.visualization.summary import GLOBAL, chosen_leads

SPECTRUM, RANKS = "energy_spectrum", "rank_histogram"


def spectrum_panels(
    scores: xr.Dataset, channels: Sequence[str], *, band: str | None = None
) -> list[Panel]:
    """Spectra of the truth and of forecasts at some lead times.

    Args:
        scores: of `credit_jax.evaluation.scores`.
        channels: labels of the channels; those without spectra are left out.
        band: of latitudes; None is the globe if available, otherwise the first one.
    """
    if SPECTRUM not in scores:
        return []
    found = scores[SPECTRUM]
    bands = found["band"].values
    band = band or (GLOBAL if GLOBAL in bands else str(bands[0]))
    found = found.sel(band=band, drop=True)
    return [
        Panel(f"Energy of {channel} by zonal wavenumber", _spectra(found, channel))
        for channel in channels
        if bool(found.sel(channel=channel).notnull().any())
    ]


def _spectra(spectrum: xr.DataArray, channel: str) -> Any:
    own = spectrum.sel(channel=channel)
    lines = dict(_lines(own))

    def draw(axis: Any) -> None:
        from matplotlib.ticker import FuncFormatter, NullLocator

        colors = iter(_shades(len(lines.keys() - {TRUTH})))
        for label, line in lines.items():
            wave = line[WAVENUMBER].values
            shown = (wave > 0) & (line.values > 0)
            look: dict[str, Any] = {"color": "#8a8f98", "linewidth": 2.5}
            if label != TRUTH:
                look = {"color": next(colors), "linewidth": 1.5}
            axis.loglog(wave[shown], line.values[shown], label=label, **look)
        for side in (axis.xaxis, axis.yaxis):
            side.set_minor_locator(NullLocator())
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel("zonal wavenumber")
        axis.grid(True)
        axis.legend(fontsize=7, framealpha=0, handlelength=1.2)

    return draw


def _lines(own: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Truth, then the forecast at some lead times: wavenumber -> energy."""
    systems = own["system"].values
    ours = MEMBERS if MEMBERS in systems and _known(own, MEMBERS) else FORECAST
    lines = [
        (lead_text(lead), own.sel(system=ours, prediction_timedelta=lead))
        for lead in chosen_leads(own.to_dataset(name=SPECTRUM))
    ]
    if TRUTH in systems and _known(own, TRUTH):
        truth = own.sel(system=TRUTH).mean("prediction_timedelta")
        lines.insert(0, (TRUTH, truth))
    return lines


def _known(own: xr.DataArray, system: str) -> bool:
    return bool(own.sel(system=system).notnull().any())


def _shades(count: int) -> list[Any]:
    import matplotlib

    return [*matplotlib.colormaps["plasma"](np.linspace(0.3, 0.88, max(count, 1)))][
        :count
    ]


def rank_panels(
    scores: xr.Dataset, channels: Sequence[str], *, region: str = GLOBAL
) -> list[Panel]:
    """Rank histograms at some lead times; those of a reliable ensemble are flat.

    Args:
        scores: of `credit_jax.evaluation.scores`.
        channels: labels of the channels; those without histograms are left out.
        region: name of the region.
    """
    if RANKS not in scores:
        return []
    found = scores[RANKS].sel(region=region)
    systems = [own for own in (FORECAST, MEMBERS) if own in found["system"].values]
    known = [own for own in systems if _known(found, own)]
    if not known:
        return []
    found = found.sel(system=known[0])
    return [
        Panel(f"Rank of the truth among members, {channel}", _ranks(found, channel))
        for channel in channels
        if bool(found.sel(channel=channel).notnull().any())
    ]


def _ranks(histogram: xr.DataArray, channel: str) -> Any:
    own = histogram.sel(channel=channel)
    leads = chosen_leads(own.to_dataset(name=RANKS))

    def draw(axis: Any) -> None:
        size = own.sizes["rank"]
        width = 0.8 / max(1, len(leads))
        for place, (lead, color) in enumerate(
            zip(leads, _shades(len(leads)), strict=True)
        ):
            counts = own.sel(prediction_timedelta=lead).values
            shares = counts / np.nansum(counts)
            shift = (place - (len(leads) - 1) / 2) * width
            ranks = np.arange(size) + shift
            axis.bar(ranks, shares, width, color=color, label=lead_text(lead))
        axis.axhline(1 / size, color="#8a8f98", linewidth=1.0, linestyle="--")
        axis.set_xlabel("rank")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=7, framealpha=0, handlelength=1.2)

    return draw
