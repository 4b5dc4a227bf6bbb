"""The page of scores: one self-contained HTML file, which needs no network."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import LEAD, seen_in_training
from credit_jax.extensions.plots.canvas import (
    DASHES,
    Chart,
    channel_text,
    lead_text,
    region_text,
)
from credit_jax.extensions.plots.html import Part, page_of_sections, part
from credit_jax.extensions.plots.score_charts import (
    BASELINES,
    GLOBAL,
    LOOKS,
    NAMES,
    bands_of,
    card_rows,
    chosen_channels,
    curve_charts,
    differences,
    rank_charts,
    small_scales_text,
    spectrum_charts,
    tabled_leads,
    values_of,
)
from credit_jax.extensions.plots.score_tables import (
    channels_of,
    score_table,
    skill_table,
    verdict,
)
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file

# Attributes of scores that have a name of their own; others follow with blanks.
_ATTRIBUTE_NAMES = {
    "title": "what",
    "num_start_dates": "start dates",
    "first_start_date": "first start date",
    "last_start_date": "last start date",
    "num_members": "members",
    "weights": "weights of area",
    "credit_jax": "scored with credit_jax",
    "forecast": "forecasts",
    "forecast_credit-jax": "forecast with credit_jax",
}


@activity("drawing the page of scores")
def write_page(
    scores: xr.Dataset,
    path: str | Path,
    *,
    title: str = "Forecast scores",
    maps: Sequence[tuple[str, bytes]] = (),  # captions and PNG bytes
    losses: Chart | None = None,  # of the training, by epoch
) -> Path:
    """Writes the page."""
    with new_file(path) as partial:
        text = page_of(scores, title=title, maps=maps, losses=losses)
        partial.write_text(text, encoding="utf-8")
    return Path(path)


def page_of(
    scores: xr.Dataset,
    *,
    title: str,
    maps: Sequence[tuple[str, bytes]] = (),
    losses: Chart | None = None,
) -> str:
    """The text of the page; see `write_page`."""
    region = GLOBAL if GLOBAL in scores["region"] else str(scores["region"].values[0])
    several = scores.sizes[LEAD] > 1
    images = [(base64.b64encode(png).decode(), text) for text, png in maps]
    # Number and length of the forecasts, and the truth.
    attributes: Mapping[str, Any] = scores.attrs
    last = lead_text(scores[LEAD].values[-1])
    parts = [f"{scores.sizes['channel']} channels to {last}"]
    if "num_start_dates" in attributes:
        parts.insert(0, counted(int(attributes["num_start_dates"]), "start date"))
    if int(attributes.get("num_members", 1)) > 1:
        parts.append(f"{attributes['num_members']} members")
    if "truth" in attributes:
        parts.append(f"truth: {attributes['truth']}")
    if seen := seen_in_training(scores):
        parts.append(seen)
    intro = ", ".join(parts)
    return page_of_sections(
        title,
        intro,
        {
            "Skill": [*verdict(scores, region), skill_table(scores, region)],
            "Scores": score_table(scores, region),
            "Curves": _curves(scores, region) if several else [],
            "Score cards": _cards(scores, region) if several else [],
            "Spectra": _spectra(scores),
            "Rank histograms": _ranks(scores, region),
            "Maps": [part("image", data=data, text=text) for data, text in images],
            "Training": [] if losses is None else _charts({"": losses}),
            "Provenance": _provenance(scores.attrs),
        },
    )


def _legend(looks: Iterable[tuple[str, Mapping[str, Any]]]) -> Part:
    lines = [
        (k, look["color"], DASHES[look.get("linestyle", "-")]) for k, look in looks
    ]
    return part("legend", lines=lines)


def _charts(
    charts: Mapping[str, Chart], scores: xr.Dataset | None = None
) -> list[Part]:
    """Charts of channels with their variables, below the legend of the first."""
    if not charts:
        return []
    first = next(iter(charts.values()))
    names = dict.fromkeys(charts, "")
    if scores is not None:
        variables = scores["variable"]
        names = {key: str(variables.sel(channel=key).item()) for key in charts}
    return [
        _legend((line.name, line.look) for line in first.lines),
        part("charts", by_variable=[(names[k], c.data) for k, c in charts.items()]),
    ]


def _choices(
    scores: xr.Dataset,
    name: str,
    keys: Iterable[str],
    parts_of: Callable[[str], list[Part]],
    chosen: str | None = None,
) -> list[Part]:
    """Parts of which one is shown, and menus; charts can be filtered by variable."""
    contents = {key: parts for key in keys if (parts := parts_of(key))}
    if not contents:
        return []
    variables = dict.fromkeys(map(str, scores["variable"].values))
    return [
        part(
            "choices",
            name=name,
            contents=contents,
            texts={key: region_text(key) for key in contents},
            chosen=chosen or next(iter(contents)),
            variables={variable: variable for variable in variables},
        )
    ]


def _curves(scores: xr.Dataset, region: str) -> list[Part]:
    """Curves of all channels, in the region that is chosen."""

    def curves_in(region: str) -> list[Part]:
        parts = []
        for metric in ("rmse", "acc", "crps"):
            charts = curve_charts(
                scores, channels_of(scores), metric=metric, region=region
            )
            if charts:
                text = f"{NAMES[metric]}, {region_text(region)}"
                parts.append(part("heading", text=text))
                parts += _charts(charts, scores)[1:]
        return parts

    regions = [str(name) for name in scores["region"].values]
    spread = values_of(scores, "spread").sel(region=region)
    looks = [
        (name, look)
        for name, look in LOOKS.items()
        if name != "spread" or bool(spread.notnull().any())
    ]
    return [_legend(looks), *_choices(scores, "region", regions, curves_in, region)]


def _spectra(scores: xr.Dataset) -> list[Part]:
    """Spectra of all channels, in the band of latitudes that is chosen."""

    def spectra_in(band: str) -> list[Part]:
        charts = spectrum_charts(scores, channels_of(scores), band=band)
        text = " ".join(small_scales_text(scores, band)) if charts else ""
        note = [part("paragraph", text=text)] if text else []
        return note + _charts(charts, scores)

    note = (
        "Mean square amplitude of each zonal wave, in units squared. Where forecasts "
        "lie below the truth they are too smooth, where they lie above it too rough."
    )
    spectra = _choices(scores, "band", bands_of(scores), spectra_in)
    return spectra and [part("note", text=note), *spectra]


def _ranks(scores: xr.Dataset, region: str) -> list[Part]:
    channels, num = chosen_channels(scores), scores.sizes["channel"]
    charts = rank_charts(scores, channels, region=region)
    some = "" if len(channels) == num else f" {len(channels)} of {num} channels."
    note = (
        "Where the truth lies among the members, in shares of all points and dates "
        f"({region_text(region)}). A reliable ensemble follows the thin line; high "
        f"ends mean that its spread is too small.{some}"
    )
    parts = _charts(charts, scores)
    return parts and [part("note", text=note), *parts]


def _cards(scores: xr.Dataset, region: str) -> list[Part]:
    parts = []
    for baseline in BASELINES:
        try:
            changes = tabled_leads(differences(scores, baseline, region=region))
        except (KeyError, ValueError):
            continue
        title = f"RMSE of the forecast beside that of {baseline}, {region_text(region)}"
        names = [channel_text(scores, str(k)) for k in changes["channel"].values]
        leads = [lead_text(lead) for lead in changes[LEAD].values]
        rows = card_rows(changes, names)
        parts.append(part("heading", text=title))
        parts.append(part("card", leads=leads, rows=rows, caption=title))
    note = part("note", text="Difference in percent; blue is better.")
    return parts and [note, *parts]


def _provenance(attributes: Mapping[Any, Any]) -> list[Part]:
    """Name and value of the attributes of scores, in words."""
    texts = {}
    for key, value in attributes.items():
        name = _ATTRIBUTE_NAMES.get(str(key))
        if name is None:
            kind, name = "", str(key)
            if name.startswith("forecast_"):
                kind, name = "forecasts: ", name.removeprefix("forecast_")
            name = f"{kind}{name.replace('_', ' ')}"
        texts[name] = str(value)
    return [part("definitions", pairs=texts)] if texts else []
