"""Charts of scores: curves by lead time, zonal energy spectra, rank histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import (
    CLIMATOLOGY,
    FORECAST,
    LEAD,
    MEMBERS,
    PAIRED,
    PERSISTENCE,
    RANK,
    SYSTEM,
    TRUTH,
    WAVENUMBER,
)
from credit_jax.extensions.plots.canvas import (
    DAY,
    channel_text,
    channel_units,
    lead_text,
    with_units,
)
from credit_jax.extensions.plots.charts import Chart, Line
from credit_jax.extensions.plots.summary import (
    BASELINES,
    GLOBAL,
    chosen_leads,
    values_of,
)

SPECTRUM, RANKS = "energy_spectrum", "rank_histogram"
MAX_WAVES = 64  # points of a line, evenly on a logarithmic axis
OFF = 1.1  # ratio of energies that is mentioned
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
        "count": "observations",
        **{f"{name}_difference": f"{name.upper()} difference" for name in PAIRED},
        **{f"{name}_interval": f"± {name.upper()}" for name in PAIRED},
    }
)


def curve_charts(
    scores: xr.Dataset,
    channels: Sequence[str],
    *,
    metric: str = "rmse",
    region: str = GLOBAL,
) -> dict[str, Chart]:
    """The chart of each channel that has a metric, one of NAMES, by channel."""
    drawn = {system: (metric, system) for system in (FORECAST, *BASELINES)}
    if metric == "rmse":
        drawn["spread"] = "spread", FORECAST
    by_system = {
        name: values_of(scores, *which).sel(region=region).values
        for name, which in drawn.items()
    }
    days = scores[LEAD].values / DAY
    charts = {}
    for channel in channels:
        index = scores.get_index("channel").get_loc(channel)
        if not np.isfinite(by_system[FORECAST][index]).any():
            continue
        lines = [
            Line(name, days, values[index], LOOKS[name], has_markers=len(days) <= 12)
            for name, values in by_system.items()
            if np.isfinite(values[index]).any()
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


def spectrum_charts(
    scores: xr.Dataset, channels: Sequence[str], *, band: str | None = None
) -> dict[str, Chart]:
    """Spectra of the truth and of forecasts at some lead times, by channel."""
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
        drawn = np.flatnonzero((waves > 0) & (energy > rounding_energy(energy)))
        if len(drawn) > MAX_WAVES:
            spaced = np.geomspace(1, len(drawn), MAX_WAVES).round().astype(int)
            drawn = drawn[np.unique(spaced) - 1]
        lines.append(Line(label, waves[drawn], energy[drawn], look))
    units = channel_units(scores, channel, power=2)
    title = with_units(f"Energy of {channel_text(scores, channel)}", units)
    logs: dict[str, Any] = {"x_is_log": True, "y_is_log": True}
    return Chart(title, "zonal wavenumber", lines, **logs, has_legend=True)


def rounding_energy(spectrum: np.ndarray) -> float:
    """Energy of a wave below which it may consist of rounding errors of float32."""
    total = float(np.nansum(spectrum))
    # A value x has the rounding error 2^-24 abs(x) / sqrt(3) in root mean square, and
    # its energy is spread over all waves; transforms between grids add up to 100 times.
    # The sum of a spectrum is the mean square of a field.
    return 100.0 * total * 2.0**-48 / 3 / max(len(spectrum) - 1, 1)


class SmallScales(NamedTuple):
    """The energy of a forecast at the shorter half of the waves of the truth."""

    last: int  # wave of the truth
    ratio: float  # of the energies from half of `last` on
    beyond: bool  # energy in waves in which the truth has none


def small_scales(
    scores: xr.Dataset, channel: str, band: str, lead: np.timedelta64
) -> SmallScales | None:
    """Compares the energy at short waves; None if a spectrum is not known."""
    spectrum = scores[SPECTRUM].sel(channel=channel, band=band)
    spectra = dict(_lines(spectrum.sel(prediction_timedelta=[lead])))
    if len(spectra) < 2 or TRUTH not in spectra:
        return None
    truth = spectra.pop(TRUTH).values.astype(float)
    forecast = next(iter(spectra.values())).values.astype(float)
    if not (np.isfinite(truth).all() and np.isfinite(forecast).all()):
        return None
    last = int(np.flatnonzero(truth > rounding_energy(truth)).max(initial=0))
    if last < 2:
        return None
    part = slice(last // 2 + 1, last + 1)
    beyond = bool((forecast[last + 1 :] > rounding_energy(forecast)).any())
    return SmallScales(last, forecast[part].sum() / truth[part].sum(), beyond)


def small_scales_text(scores: xr.Dataset, band: str) -> list[str]:
    """Sentences on the energy at short waves, at the last lead time of the charts."""
    leads = chosen_leads(scores)
    channels = [str(name) for name in scores["channel"].values]
    if not len(leads):
        return []
    scales = {
        channel: scale
        for channel in channels
        if (scale := small_scales(scores, channel, band, leads[-1])) is not None
    }
    if not scales:
        return []
    ratios = {channel: scale.ratio for channel, scale in scales.items()}
    start = f"At {lead_text(leads[-1])}, in the shorter half of the waves of the truth,"
    parts = []
    for is_excess, subject, most_is in (
        (True, "too much energy (too rough)", "at most"),
        (False, "too little energy (too smooth)", "at least"),
    ):
        off = [c for c, r in ratios.items() if not 1 / OFF <= r <= OFF]
        names = [channel for channel in off if (ratios[channel] > 1) == is_excess]
        if names:
            most = max(names, key=lambda name: abs(np.log(max(ratios[name], 1e-300))))
            parts.append(
                f"{subject} in {len(names)} of {len(scales)} channels, {most_is} "
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


def _lines(spectrum: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Truth, then the forecast at some lead times: wavenumber -> energy."""
    system = MEMBERS if _known(spectrum, MEMBERS) else FORECAST
    lines = [
        (lead_text(lead), spectrum.sel(system=system, prediction_timedelta=lead))
        for lead in chosen_leads(spectrum.to_dataset(name=SPECTRUM))
    ]
    if _known(spectrum, TRUTH):
        truth = spectrum.sel(system=TRUTH).mean("prediction_timedelta")
        lines.insert(0, (TRUTH, truth))
    return lines


def _known(array: xr.DataArray, system: str) -> bool:
    systems = array[SYSTEM].values
    return system in systems and bool(array.sel(system=system).notnull().any())


def _shades(count: int) -> list[str]:
    """Colors of lead times, from early to late."""
    import matplotlib
    from matplotlib.colors import to_hex

    # Others are hardly seen on the black or the white paper of a page.
    indices = np.linspace(0.42, 0.8, max(count, 1))[:count]
    return [to_hex(color) for color in matplotlib.colormaps["plasma"](indices)]


def rank_charts(
    scores: xr.Dataset, channels: Sequence[str], *, region: str = GLOBAL
) -> dict[str, Chart]:
    """Rank histograms at some lead times, by channel; reliable ensembles' are flat."""
    if RANKS not in scores:
        return {}
    ranks = scores[RANKS].sel(region=region)
    systems = [name for name in (FORECAST, MEMBERS) if _known(ranks, name)]
    if not systems:
        return {}
    ranks = ranks.sel(system=systems[0])
    leads, size = chosen_leads(scores), ranks.sizes[RANK]
    width = 0.8 / max(1, len(leads))
    charts = {}
    for channel in channels:
        of_channel = ranks.sel(channel=channel)
        if not bool(of_channel.notnull().any()):
            continue
        lines = []
        for number, (lead, color) in enumerate(
            zip(leads, _shades(len(leads)), strict=True)
        ):
            counts = of_channel.sel(prediction_timedelta=lead).values
            shift = (number - (len(leads) - 1) / 2) * width
            x, shares = np.arange(size) + shift, counts / np.nansum(counts)
            lines.append(Line(lead_text(lead), x, shares, {"color": color}))
        charts[channel] = Chart(
            f"Rank of {channel_text(scores, channel)}",
            "rank",
            lines,
            has_integer_x=True,
            level=1 / size,
            has_legend=True,
            bar_width=width,
        )
    return charts
