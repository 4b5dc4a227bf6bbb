"""The page of scores: one self-contained HTML file, which needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import xarray as xr

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import seen_in_training
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file
from credit_jax.visualization.canvas import Panel, panel_svg
from credit_jax.visualization.card import card_panel, differences
from credit_jax.visualization.charts import DASHES, Chart
from credit_jax.visualization.curves import LOOKS, NAMES, curve_charts
from credit_jax.visualization.html import (
    choices,
    definitions,
    document,
    element,
    image,
)
from credit_jax.visualization.labels import channel_text, lead_text, region_text
from credit_jax.visualization.score_tables import score_table, skill_table, verdict
from credit_jax.visualization.spectra import (
    bands_of,
    rank_panels,
    small_scales_text,
    spectrum_charts,
)
from credit_jax.visualization.summary import BASELINES, GLOBAL, chosen_channels, series

PAGE_NAME = "scores.html"
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
_OF_FORECAST = "forecast_"


@activity("drawing the page of scores")
def write_page(
    scores: xr.Dataset,
    path: str | Path,
    *,
    title: str = "Forecast scores",
    maps: Sequence[tuple[str, bytes]] = (),
    losses: Chart | None = None,
) -> Path:
    """Writes the page.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        path: path of the HTML file.
        title: title of the page.
        maps: captions and PNG bytes of maps to show.
        losses: those of the training, by epoch.

    Returns:
        The path.
    """
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
    several = scores.sizes["prediction_timedelta"] > 1
    contents = {
        "Skill": verdict(scores, region) + skill_table(scores, region),
        "Scores": score_table(scores, region),
        "Curves": _curves(scores, region) if several else "",
        "Score cards": _cards(scores, region) if several else "",
        "Spectra": _spectra(scores),
        "Rank histograms": _ranks(scores, region),
        "Maps": "".join(image(png, text) for text, png in maps),
        "Training": "" if losses is None else _losses(losses),
        "Provenance": _provenance(scores),
    }
    sections = {name: content for name, content in contents.items() if content}
    links = "".join(
        element("a", name, {"href": f"#{_anchor(name)}"}) for name in sections
    )
    body = "\n".join(
        element("section", f"<h2>{name}</h2>\n{content}", {"id": _anchor(name)})
        for name, content in sections.items()
    )
    head = f"<h1>{escape(title)}</h1>\n{_of_what(scores)}{element('nav', links)}"
    return document(title, f"{head}\n{body}")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _of_what(scores: xr.Dataset) -> str:
    """Number and length of the forecasts, and the truth, as a paragraph."""
    attributes: Mapping[str, Any] = scores.attrs
    last = lead_text(scores["prediction_timedelta"].values[-1])
    parts = [f"{scores.sizes['channel']} channels to {last}"]
    if "num_start_dates" in attributes:
        parts.insert(0, counted(int(attributes["num_start_dates"]), "start date"))
    if int(attributes.get("num_members", 1)) > 1:
        parts.append(f"{attributes['num_members']} members")
    if "truth" in attributes:
        parts.append(f"truth: {attributes['truth']}")
    if seen := seen_in_training(scores):
        parts.append(seen)
    return element("p", escape(", ".join(parts)), {"class": "note"})


def _curves(scores: xr.Dataset, region: str) -> str:
    """Curves of all channels, in the region that is chosen."""
    regions = [str(name) for name in scores["region"].values]
    content = {key: _curves_in(scores, key) for key in regions}
    content = {key: charts for key, charts in content.items() if charts}
    shown = {key: region_text(key) for key in content}
    return _key(scores, region) + choices(
        "region", content, shown, region, _variables(scores)
    )


def _curves_in(scores: xr.Dataset, region: str) -> str:
    channels = [str(name) for name in scores["channel"].values]
    parts = []
    for metric in ("rmse", "acc", "crps"):
        charts = curve_charts(scores, channels, metric=metric, region=region)
        if charts:
            parts.append(f"<h3>{NAMES[metric]}, {escape(region_text(region))}</h3>")
            parts.append(_charts(scores, charts))
    return "".join(parts)


def _spectra(scores: xr.Dataset) -> str:
    """Spectra of all channels, in the band of latitudes that is chosen."""
    channels = [str(name) for name in scores["channel"].values]
    content = {}
    for band in bands_of(scores):
        if charts := spectrum_charts(scores, channels, band=band):
            text = " ".join(small_scales_text(scores, band))
            note = element("p", escape(text)) if text else ""
            content[band] = note + _charts(scores, charts)
    if not content:
        return ""
    note = (
        "Mean square amplitude of each zonal wave, in units squared. Where forecasts "
        "lie below the truth they are too smooth, where they lie above it too rough."
    )
    shown = {band: region_text(band) for band in content}
    first = next(iter(content))
    return (
        element("p", note, {"class": "note"})
        + _chart_key(next(iter(spectrum_charts(scores, channels).values())))
        + choices("band", content, shown, first, _variables(scores))
    )


def _variables(scores: xr.Dataset) -> list[str]:
    return [*dict.fromkeys(map(str, scores["variable"].values))]


def _ranks(scores: xr.Dataset, region: str) -> str:
    channels = chosen_channels(scores)
    shown = len(channels), scores.sizes["channel"]
    some = "" if shown[0] == shown[1] else f" {shown[0]} of {shown[1]} channels."
    where = escape(region_text(region))
    return _panels(
        rank_panels(scores, channels, region=region),
        "ranks",
        "Where the truth lies among the members, in shares of all points and "
        f"dates ({where}). A reliable ensemble follows the dashed line; "
        f"high ends mean that its spread is too small.{some}",
    )


def _charts(scores: xr.Dataset, charts: Mapping[str, Chart]) -> str:
    """A grid of charts, which can be filtered by variable."""
    shown = [
        _figure(
            chart,
            {"data-variable": str(scores["variable"].sel(channel=channel).item())},
        )
        for channel, chart in charts.items()
    ]
    return element("div", "\n".join(shown), {"class": "panels"})


def _figure(chart: Chart, attributes: Mapping[str, str] | None = None) -> str:
    caption = element("figcaption", escape(chart.title))
    return element("figure", caption + chart.svg, attributes)


def _provenance(scores: xr.Dataset) -> str:
    texts = provenance_texts(scores.attrs)
    return definitions(texts) if texts else ""


def _key(scores: xr.Dataset, region: str) -> str:
    """The legend of all curves."""
    channels = [str(name) for name in scores["channel"].values]
    has_spread = any(
        series(scores, "spread", item, region=region) is not None for item in channels
    )
    names = [item for item in LOOKS if item != "spread" or has_spread]
    return _legend({name: LOOKS[name] for name in names})


def _losses(chart: Chart) -> str:
    shown = element("div", _figure(chart), {"class": "panels"})
    return _chart_key(chart) + shown


def _chart_key(chart: Chart) -> str:
    """The legend of charts with the lines of one."""
    return _legend({line.name: line.look for line in chart.lines})


def _legend(looks: Mapping[str, Mapping[str, Any]]) -> str:
    items = []
    for name, look in looks.items():
        line = {
            "d": "M0 5H36",
            "fill": "none",
            "stroke": look["color"],
            "stroke-width": "2.5",
            "stroke-dasharray": DASHES[look.get("linestyle", "-")],
        }
        box = {"aria-hidden": "true", "viewBox": "0 0 36 10"}
        sample = element("svg", element("path", "", line), box)
        items.append(element("li", sample + escape(name)))
    return element("ul", "".join(items), {"class": "key"})


def _cards(scores: xr.Dataset, region: str) -> str:
    parts = []
    for baseline in BASELINES:
        try:
            changes = differences(scores, baseline, region=region)
        except (KeyError, ValueError):
            continue
        where = region_text(region)
        title = f"RMSE of the forecast beside that of {baseline}, {where}"
        names = [
            channel_text(scores, str(channel)) for channel in changes["channel"].values
        ]
        panel = card_panel(changes, title, names)
        card = panel_svg(panel, f"card-{baseline}")
        # The card is as wide as its columns need; the page scrolls it.
        card = card.replace("<svg ", f'<svg width="{90 * panel.width:g}" ', 1)
        name = element("h3", escape(title))
        shown = element("div", card, {"class": "scroll card"})
        parts.append(element("div", name + shown))
    if not parts:
        return ""
    note = element("p", "Difference in percent; blue is better.", {"class": "note"})
    return note + element("div", "".join(parts), {"class": "cards"})


def _panels(panels: Sequence[Panel], prefix: str, note: str = "") -> str:
    """A grid of panels; empty without any."""
    shown = [
        element(
            "figure",
            element("figcaption", escape(panel.title))
            + panel_svg(panel, f"{prefix}-{place}"),
        )
        for place, panel in enumerate(panels)
    ]
    if not shown:
        return ""
    before = element("p", note, {"class": "note"}) if note else ""
    return before + element("div", "\n".join(shown), {"class": "panels"})


def provenance_texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Name and value of the attributes of scores, in words.

    Args:
        attributes: attributes of the data set, see `credit_jax.evaluation.scores`.
    """
    texts = {}
    for key, value in attributes.items():
        name = _ATTRIBUTE_NAMES.get(str(key))
        if name is None:
            name = str(key)
            if name.startswith(_OF_FORECAST):
                name = f"forecasts: {name.removeprefix(_OF_FORECAST)}"
            name = name.replace("_", " ")
        texts[name] = str(value)
    return texts
