"""Charts of scores: curves by lead time, spectra, rank histograms, score cards.

And which channels and lead times are displayed, and until when a forecast has skill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import (
    CHANNEL,
    CLIMATOLOGY,
    FORECAST,
    LEAD,
    MEMBERS,
    PAIRED,
    PERSISTENCE,
    RANK,
    REGION,
    SYSTEM,
    TRUTH,
    WAVENUMBER,
    evenly_spaced,
)
from credit_jax.extensions.plots.canvas import (
    DAY,
    Chart,
    Line,
    Panel,
    channel_text,
    channel_units,
    lead_text,
    with_units,
)

BASELINES = (PERSISTENCE, CLIMATOLOGY)
GLOBAL = "global"
CHOSEN_DAYS = (1, 3, 5, 7, 10)
# Pressure levels in hPa that are selected.
CHOSEN_PRESSURES = (850.0, 500.0, 250.0)


def values_of(
    scores: xr.Dataset, metric: str, system: str = FORECAST
) -> Float[xr.DataArray, "channel region lead"]:
    """Returns a metric of a system; NaN if there is none."""
    dims = (CHANNEL, REGION, LEAD)
    if metric in scores and system in scores[SYSTEM].values:
        return scores[metric].sel(system=system).transpose(*dims)
    sizes = [scores.sizes[dim] for dim in dims]
    return xr.DataArray(np.full(sizes, np.nan), {d: scores[d] for d in dims}, dims)


def chosen_leads(scores: xr.Dataset) -> np.ndarray:
    """Selects the lead times at CHOSEN_DAYS; if none exists, the first and the last."""
    leads = scores["prediction_timedelta"].values
    days = [np.timedelta64(round(day * 86400), "s") for day in CHOSEN_DAYS]
    chosen = [lead for lead in leads if lead in days]
    if not chosen:
        chosen = [*dict.fromkeys((leads[0], leads[-1]))] if len(leads) else []
    return np.array(chosen, leads.dtype)


def chosen_channels(scores: xr.Dataset, limit: int = 24) -> list[str]:
    """Selects channels: all up to a limit, otherwise up to three levels a variable."""
    channels = [str(name) for name in scores["channel"].values]
    if len(channels) <= limit:
        return channels
    chosen: list[str] = []
    variables = scores["variable"].values
    for variable in dict.fromkeys(variables.tolist()):
        names = [channels[i] for i in np.flatnonzero(variables == variable)]
        levels = scores["level"].sel(channel=names).values.astype(float)
        if len(levels) <= 3:
            near = range(len(levels))
        elif np.nanmax(levels) >= CHOSEN_PRESSURES[0]:
            near = (int(np.nanargmin(np.abs(levels - p))) for p in CHOSEN_PRESSURES)
        else:
            # Numbers of model levels.
            near = (round(part * (len(levels) - 1)) for part in (0.25, 0.5, 0.75))
        chosen += [names[i] for i in sorted(set(near))]
    return chosen


@dataclass(frozen=True)
class Skillful:
    """Until when a channel has a smaller RMSE than a baseline; None if never."""

    until: np.timedelta64 | None
    to_the_end: bool  # `until` is the last lead time
    returns: bool = False  # it is smaller again later

    @property
    def text(self) -> str:
        """Text for a table."""
        if self.until is None:
            return "never" if not self.returns else "not at first"
        return f"{'≥ ' if self.to_the_end else ''}{lead_text(self.until)}"

    @property
    def days(self) -> float:
        """Sort key in days."""
        if self.until is None:
            return 0.0
        return float(self.until / np.timedelta64(1, "D")) + 0.001 * self.to_the_end


def skillful(
    scores: xr.Dataset, channel: str, baseline: str, region: str = GLOBAL
) -> Skillful | None:
    """Returns until when a channel beats a baseline; None if there are no values."""
    errors, base = (
        values_of(scores, "rmse", system).sel(channel=channel, region=region).values
        for system in (FORECAST, baseline)
    )
    both = np.isfinite(errors) & np.isfinite(base)
    leads = scores[LEAD].values[both]
    if not len(leads):
        return None
    better = errors[both] < base[both]
    if better.all():
        return Skillful(leads[-1], True)
    first = int(np.argmin(better))
    until = leads[first - 1] if first else None
    return Skillful(until, False, bool(better[first:].any()))


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
    return difference.isel({LEAD: evenly_spaced(difference.sizes[LEAD], MAX_LEADS)})


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
