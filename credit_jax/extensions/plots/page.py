"""The page of scores: one self-contained HTML file, which needs no network.

Its tables, and sentences that summarize them, come first; page.js draws the charts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import (
    FORECAST,
    LEAD,
    PAIRED,
    REGION,
    seen_in_training,
)
from credit_jax.extensions.plots import canvas, score_charts
from credit_jax.extensions.plots.canvas import (
    Chart,
    channel_text,
    lead_text,
    region_text,
)
from credit_jax.extensions.plots.html import (
    Cell,
    Part,
    TableRow,
    page_of_sections,
    part,
)
from credit_jax.extensions.plots.score_charts import BASELINES, GLOBAL, NAMES, values_of
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
    **contents: Any,
) -> Path:
    """Writes the page; see `page_of`."""
    with new_file(path) as partial:
        partial.write_text(page_of(scores, **contents), encoding="utf-8")
    return Path(path)


def page_of(
    scores: xr.Dataset,
    *,
    title: str = "Forecast scores",
    maps: Sequence[tuple[str, bytes]] = (),  # captions and PNG bytes
    losses: Chart | None = None,  # of the training, by epoch
) -> str:
    """The text of the page."""
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
    lines = [(k, x["color"], canvas.DASHES[x.get("linestyle", "-")]) for k, x in looks]
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
            charts = score_charts.curve_charts(
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
        for name, look in score_charts.LOOKS.items()
        if name != "spread" or bool(spread.notnull().any())
    ]
    return [_legend(looks), *_choices(scores, "region", regions, curves_in, region)]


def _spectra(scores: xr.Dataset) -> list[Part]:
    """Spectra of all channels, in the band of latitudes that is chosen."""

    def spectra_in(band: str) -> list[Part]:
        charts = score_charts.spectrum_charts(scores, channels_of(scores), band=band)
        text = " ".join(score_charts.small_scales_text(scores, band)) if charts else ""
        note = [part("paragraph", text=text)] if text else []
        return note + _charts(charts, scores)

    note = (
        "Mean square amplitude of each zonal wave, in units squared. Where forecasts "
        "lie below the truth they are too smooth, where they lie above it too rough."
    )
    spectra = _choices(scores, "band", score_charts.bands_of(scores), spectra_in)
    return spectra and [part("note", text=note), *spectra]


def _ranks(scores: xr.Dataset, region: str) -> list[Part]:
    channels, num = score_charts.chosen_channels(scores), scores.sizes["channel"]
    charts = score_charts.rank_charts(scores, channels, region=region)
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
            changes = score_charts.differences(scores, baseline, region=region)
        except (KeyError, ValueError):
            continue
        changes = score_charts.tabled_leads(changes)
        title = f"RMSE of the forecast beside that of {baseline}, {region_text(region)}"
        names = [channel_text(scores, str(k)) for k in changes["channel"].values]
        leads = [lead_text(lead) for lead in changes[LEAD].values]
        rows = score_charts.card_rows(changes, names)
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


MAX_NAMES = 6  # names in a sentence
# Metrics shown for the forecast only; the RMSE is also shown for the baselines.
OTHERS = (
    "mae",
    "bias",
    "acc",
    "activity",
    "crps",
    "spread",
    "spread_skill_ratio",
    "missing",
    "count",
    *(f"{name}_{kind}" for name in PAIRED for kind in ("difference", "interval")),
)


def channels_of(scores: xr.Dataset) -> list[str]:
    """All channels."""
    return [str(name) for name in scores["channel"].values]


def verdict(scores: xr.Dataset, region: str) -> list[Part]:
    """Says until which lead time forecasts beat each baseline, in one sentence each."""
    sentences = []
    first = lead_text(scores[LEAD].values[0])
    for baseline in BASELINES:
        skills = {
            channel_text(scores, channel): skill
            for channel in channels_of(scores)
            if (skill := score_charts.skillful(scores, channel, baseline, region))
        }
        if skills:
            sentences.append(_sentence(skills, baseline, first))
    return [part("items", texts=sentences)] if sentences else []


def _sentence(skills: Mapping[str, Any], baseline: str, first: str) -> str:
    never = [name for name, skill in skills.items() if skill.until is None]
    ends: dict[str, Any] = {
        k: skill.until for k, skill in skills.items() if skill.until
    }
    lasting = {name for name, skill in skills.items() if skill.to_the_end}
    start = f"The RMSE is below that of {baseline}"
    if len(lasting) == len(skills):
        last = lead_text(next(iter(ends.values())))
        return f"{start} at every lead time, to {last}, for all {len(skills)} channels."
    start += f" at the first lead time, {first}, for"
    if not ends:
        return f"{start} no channel."
    text = f"{start} all {len(ends)} channels."
    if never:
        text = f"{start} {len(ends)} of {len(skills)} channels; not for {_few(never)}."
    ends = {name: end for name, end in ends.items() if name not in lasting}
    if ends:
        first_end, last_end = min(ends.values()), max(ends.values())
        text += f" This ends first for {_tied(ends, first_end)}"
        if first_end != last_end:
            text += f", and last for {_tied(ends, last_end)}"
        if lasting:
            text += f"; it holds to the end for {len(lasting)} of {len(skills)}"
        text += "."
    return text


def _tied(ends: Mapping[str, Any], end: Any) -> str:
    """All channels with this end, and the end: "T at 500 hPa and SP, after 3 d"."""
    names = [name for name, ending in ends.items() if ending == end]
    after = f"after {lead_text(end)}"
    if len(names) > MAX_NAMES:
        return f"{len(names)} channels ({_few(names)}), {after}"
    *others, last = names
    return f"{', '.join(others)} and {last}, {after}" if others else f"{last}, {after}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def skill_table(scores: xr.Dataset, region: str) -> Part:
    """Table, by channel, of the last lead time with an RMSE below each baseline's."""
    named = "long_name" if "long_name" in scores.coords else "variable"
    rows = []
    for channel in channels_of(scores):
        cells = []
        for baseline in BASELINES:
            skill = score_charts.skillful(scores, channel, baseline, region)
            cells.append(Cell("–", float("nan")))
            if skill is not None:
                kind = "bad" if skill.until is None else "good" * skill.to_the_end
                cells[-1] = Cell(skill.text, skill.days, kind)
        names = (scores[k].sel(channel=channel).item() for k in (named, "variable"))
        cells.append(Cell(next((str(k) for k in names if k), ""), None, "text"))
        rows.append(TableRow(channel_text(scores, channel), cells))
    return part(
        "table",
        id="skill-table",
        columns=[
            ("channel", True),
            *((f"beats {name} until", False) for name in BASELINES),
            ("variable", True),
        ],
        rows=rows,
        caption=f"Lead times with skill, {region_text(region)}",
    )


def score_table(scores: xr.Dataset, region: str) -> list[Part]:
    """Table of metrics by channel, region and chosen lead time, with filter menus."""
    leads = score_charts.chosen_leads(scores)
    # Of "missing", only what is missing is of interest.
    others = [
        name
        for name in OTHERS
        if name in scores
        and (scores[name] > 0 if name == "missing" else scores[name].notnull()).any()
    ]
    regions = {name: region_text(name) for name in map(str, scores["region"].values)}
    texts = {text: text for text in map(lead_text, leads)}
    note = (
        "Persistence and climatology: their RMSE. RMSE, MAE, bias, activity, CRPS and "
        "spread are in the units of the channel, the others are ratios. The other "
        "lead times are in scores.csv and scores.nc."
    )
    if int(scores.attrs.get("num_members", 1)) > 1:
        note += " RMSE, MAE, bias, ACC and activity are those of the ensemble mean."
    if "against" in scores.attrs:
        note += f" Differences are to {scores.attrs['against']}, ± their 95 % interval."
    return [
        part(
            "table",
            id="score-table",
            columns=[
                *(("channel", True), ("units", True), ("lead", False), ("RMSE", False)),
                *((name, False) for name in BASELINES),
                ("beats both", True),
                *((NAMES[metric], False) for metric in others),
                ("region", True),
            ],
            rows=_score_rows(scores, leads, others),
            caption="Scores at chosen lead times",
            menus=[
                ("region", "region", regions, region),
                ("lead", "lead time", texts, next(iter(texts), "")),
            ],
        ),
        part("note", text=note),
    ]


def _score_rows(
    scores: xr.Dataset, leads: np.ndarray, others: Sequence[str]
) -> list[TableRow]:
    """One row for each region, channel and lead time, in this order."""
    chosen = [("rmse", system) for system in (FORECAST, *BASELINES)]
    chosen += [(metric, FORECAST) for metric in others]
    arrays = np.stack([values_of(scores, *k).sel({LEAD: leads}).values for k in chosen])
    days, texts = leads / canvas.DAY, [lead_text(lead) for lead in leads]
    channels = channels_of(scores)
    units = [Cell(canvas.channel_units(scores, k), None, "text") for k in channels]
    names = [channel_text(scores, channel) for channel in channels]
    rows, num = [], 1 + len(BASELINES)
    for r, region in enumerate(map(str, scores[REGION].values)):
        for c, name in enumerate(names):
            for k, text in enumerate(texts):
                values = [float(value) for value in arrays[:, c, r, k]]
                numbers = [Cell(canvas.number_text(value), value) for value in values]
                # Whether the forecast is below all others that are not NaN.
                first, rivals = values[0], [x for x in values[1:num] if x == x]
                beats = Cell("–", None, "text")
                if rivals and first == first:
                    kinds = ("yes", "good") if first < min(rivals) else ("no", "bad")
                    beats = Cell(kinds[0], None, f"text {kinds[1]}")
                cells = [
                    units[c],
                    Cell(text, float(days[k])),
                    *numbers[:num],
                    beats,
                    *numbers[num:],
                    Cell(region_text(region), None, "text"),
                ]
                rows.append(TableRow(name, cells, {"region": region, "lead": text}))
    return rows
