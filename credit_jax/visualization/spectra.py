"""Zonal energy spectra by wavenumber, and rank histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import FORECAST, MEMBERS, TRUTH, WAVENUMBER
from credit_jax.visualization.canvas import Panel
from credit_jax.visualization.charts import Chart, Line
from credit_jax.visualization.labels import (
    channel_text,
    channel_units,
    lead_text,
    with_units,
)
from credit_jax.visualization.summary import GLOBAL, chosen_leads

SPECTRUM, RANKS = "energy_spectrum", "rank_histogram"
MAX_WAVES = 64  # points of a line
OFF = 1.1  # ratio of energies that is mentioned


def spectrum_charts(
    scores: xr.Dataset, channels: Sequence[str], *, band: str | None = None
) -> dict[str, Chart]:
    """Spectra of the truth and of forecasts at some lead times, by channel.

    Energies that rounding errors of float32 alone would give (`rounding_energy`) are
    not drawn.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        channels: labels of the channels; those without spectra are left out.
        band: band of latitudes; None is the globe if available, otherwise the first
            one.
    """
    if SPECTRUM not in scores:
        return {}
    spectrum = scores[SPECTRUM].sel(band=band or bands_of(scores)[0], drop=True)
    return {
        channel: _spectra(scores, spectrum.sel(channel=channel), channel)
        for channel in channels
        if bool(spectrum.sel(channel=channel).notnull().any())
    }


def bands_of(scores: xr.Dataset) -> list[str]:
    """The bands of latitudes that have spectra, the globe first; [] without spectra."""
    if SPECTRUM not in scores:
        return []
    names = [str(name) for name in scores["band"].values]
    return sorted(names, key=lambda name: name != GLOBAL)


def _spectra(scores: xr.Dataset, channel_spectra: xr.DataArray, channel: str) -> Chart:
    spectra = dict(_lines(channel_spectra))
    shades = iter(_shades(len(spectra.keys() - {TRUTH})))
    lines = []
    for label, spectrum in spectra.items():
        look: dict[str, Any] = {"color": "#8a8f98", "linewidth": 2.5}
        if label != TRUTH:
            look = {"color": next(shades), "linewidth": 1.5}
        waves = spectrum[WAVENUMBER].values.astype(float)
        energy = spectrum.values.astype(float)
        shown = (waves > 0) & (energy > rounding_energy(energy))
        places = _thinned(waves[shown])
        lines.append(Line(label, waves[shown][places], energy[shown][places], look))
    units = channel_units(scores, channel, power=2)
    title = with_units(f"Energy of {channel_text(scores, channel)}", units)
    logs: dict[str, Any] = {"x_is_log": True, "y_is_log": True}
    return Chart(title, "zonal wavenumber", lines, **logs, has_legend=True)


def rounding_energy(spectrum: np.ndarray) -> float:
    """Energy of a wave below which it may consist of rounding errors of float32.

    A value x has the rounding error 2^-24 abs(x) / sqrt(3) in root mean square; its
    energy is spread over all waves. Transforms between grids add some more: waves of
    less than 100 times this energy count as zero.

    Args:
        spectrum: energy by wavenumber; its sum is the mean square of the field.
    """
    total = float(np.nansum(spectrum))
    return 100.0 * total * 2.0**-48 / 3 / max(len(spectrum) - 1, 1)


def _thinned(waves: np.ndarray) -> np.ndarray:
    """Positions of about MAX_WAVES wavenumbers, evenly on a logarithmic axis."""
    if len(waves) <= MAX_WAVES:
        return np.arange(len(waves))
    spaced = np.geomspace(1, len(waves), MAX_WAVES).round().astype(int)
    return np.unique(spaced) - 1


@dataclass(frozen=True)
class SmallScales:
    """The energy of a forecast at short waves, beside that of the truth.

    Attributes:
        first, last: the shorter half of the waves in which the truth has energy.
        ratio: energy of the forecast in these, over that of the truth.
        beyond: whether the forecast has energy in shorter waves, where the truth has
            only rounding errors.
    """

    first: int
    last: int
    ratio: float
    beyond: bool


def small_scales(
    scores: xr.Dataset, channel: str, band: str, lead: np.timedelta64
) -> SmallScales | None:
    """Compares the energy at short waves; None if a spectrum is not known."""
    if SPECTRUM not in scores:
        return None
    spectrum = scores[SPECTRUM].sel(channel=channel, band=band)
    spectra = dict(_lines(spectrum.sel(prediction_timedelta=[lead])))
    if len(spectra) < 2 or TRUTH not in spectra:
        return None
    truth = spectra.pop(TRUTH).values.astype(float)
    forecast = next(iter(spectra.values())).values.astype(float)
    if not (np.isfinite(truth).all() and np.isfinite(forecast).all()):
        return None
    known = np.flatnonzero(truth > rounding_energy(truth))
    last = int(known[-1]) if len(known) else 0
    if last < 2:
        return None
    first = last // 2 + 1
    part = slice(first, last + 1)
    beyond = bool((forecast[last + 1 :] > rounding_energy(forecast)).any())
    return SmallScales(first, last, forecast[part].sum() / truth[part].sum(), beyond)


def small_scales_text(scores: xr.Dataset, band: str) -> list[str]:
    """Sentences on the energy at short waves, at the last lead time of the charts."""
    leads = chosen_leads(scores)
    channels = [str(name) for name in scores["channel"].values]
    if not len(leads):
        return []
    compared = {c: small_scales(scores, c, band, leads[-1]) for c in channels}
    scales = {
        channel: scale for channel, scale in compared.items() if scale is not None
    }
    if not scales:
        return []
    ratios = {channel: scale.ratio for channel, scale in scales.items()}
    start = f"At {lead_text(leads[-1])}, in the shorter half of the waves of the truth,"
    parts = []
    for is_excess, what, most_is in (
        (True, "too much energy (too rough)", "at most"),
        (False, "too little energy (too smooth)", "at least"),
    ):
        names = [c for c, r in ratios.items() if _is_off(r) and (r > 1) == is_excess]
        if names:
            most = max(names, key=lambda name: abs(np.log(max(ratios[name], 1e-300))))
            parts.append(
                f"{what} in {len(names)} of {len(scales)} channels, {most_is} "
                f"{ratios[most]:.2g} times that of the truth ("
                f"{channel_text(scores, most)})"
            )
    text = f"{start} forecasts have {', and '.join(parts)}."
    if not parts:
        text = f"{start} forecasts have the energy of the truth, within 10 %."
    sentences = [text]
    beyond = [channel for channel, scale in scales.items() if scale.beyond]
    if beyond:
        lasts = {scales[channel].last for channel in beyond}
        waves = " to ".join(str(wave) for wave in sorted({min(lasts), max(lasts)}))
        s = "s" if len(lasts) > 1 else ""
        sentences.append(
            f"Beyond wavenumber{s} {waves} the truth of "
            f"{counted(len(beyond), 'channel')} is zero but for rounding, which "
            "is not drawn, and the forecast is not."
        )
    return sentences


def _is_off(ratio: float) -> bool:
    return not 1 / OFF <= ratio <= OFF


def _lines(spectrum: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Truth, then the forecast at some lead times: wavenumber -> energy."""
    systems = spectrum["system"].values
    ours = MEMBERS if MEMBERS in systems and _known(spectrum, MEMBERS) else FORECAST
    lines = [
        (lead_text(lead), spectrum.sel(system=ours, prediction_timedelta=lead))
        for lead in chosen_leads(spectrum.to_dataset(name=SPECTRUM))
    ]
    if TRUTH in systems and _known(spectrum, TRUTH):
        truth = spectrum.sel(system=TRUTH).mean("prediction_timedelta")
        lines.insert(0, (TRUTH, truth))
    return lines


def _known(array: xr.DataArray, system: str) -> bool:
    return bool(array.sel(system=system).notnull().any())


def _shades(count: int) -> list[str]:
    """Colors of lead times, from early to late."""
    import matplotlib
    from matplotlib.colors import to_hex

    # Others are hardly seen on the black or the white paper of a page.
    places = np.linspace(0.42, 0.8, max(count, 1))[:count]
    return [to_hex(color) for color in matplotlib.colormaps["plasma"](places)]


def rank_panels(
    scores: xr.Dataset, channels: Sequence[str], *, region: str = GLOBAL
) -> list[Panel]:
    """Rank histograms at some lead times; those of a reliable ensemble are flat.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        channels: labels of the channels; those without histograms are left out.
        region: name of the region.
    """
    if RANKS not in scores:
        return []
    ranks = scores[RANKS].sel(region=region)
    systems = [
        system for system in (FORECAST, MEMBERS) if system in ranks["system"].values
    ]
    known = [system for system in systems if _known(ranks, system)]
    if not known:
        return []
    ranks = ranks.sel(system=known[0])
    return [
        Panel(f"Rank of {channel_text(scores, channel)}", _ranks(ranks, channel))
        for channel in channels
        if bool(ranks.sel(channel=channel).notnull().any())
    ]


def _ranks(histogram: xr.DataArray, channel: str) -> Any:
    channel_ranks = histogram.sel(channel=channel)
    leads = chosen_leads(channel_ranks.to_dataset(name=RANKS))

    def draw(axis: Any) -> None:
        size = channel_ranks.sizes["rank"]
        width = 0.8 / max(1, len(leads))
        for place, (lead, color) in enumerate(
            zip(leads, _shades(len(leads)), strict=True)
        ):
            counts = channel_ranks.sel(prediction_timedelta=lead).values
            shares = counts / np.nansum(counts)
            shift = (place - (len(leads) - 1) / 2) * width
            ranks = np.arange(size) + shift
            axis.bar(ranks, shares, width, color=color, label=lead_text(lead))
        axis.axhline(1 / size, color="#8a8f98", linewidth=1.0, linestyle="--")
        axis.set_xlabel("rank")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=7, framealpha=0, handlelength=1.2)

    return draw
