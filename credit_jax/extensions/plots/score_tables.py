"""The tables of the page of scores, and sentences that summarize them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.evaluation.scores import FORECAST, LEAD, PAIRED, REGION
from credit_jax.extensions.plots.canvas import (
    DAY,
    channel_text,
    channel_units,
    lead_text,
    number_text,
    region_text,
)
from credit_jax.extensions.plots.html import Cell, Part, TableRow, part
from credit_jax.extensions.plots.score_charts import (
    BASELINES,
    NAMES,
    Skillful,
    chosen_leads,
    skillful_until,
    values_of,
)

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
            if (skill := skillful_until(scores, channel, baseline, region=region))
        }
        if skills:
            sentences.append(_sentence(skills, baseline, first))
    return [part("items", texts=sentences)] if sentences else []


def _sentence(skills: dict[str, Skillful], baseline: str, first: str) -> str:
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
            skill = skillful_until(scores, channel, baseline, region=region)
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
    leads = chosen_leads(scores)
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
    days, texts = leads / DAY, [lead_text(lead) for lead in leads]
    units = [Cell(channel_units(scores, k), None, "text") for k in channels_of(scores)]
    names = [channel_text(scores, channel) for channel in channels_of(scores)]
    rows, num = [], 1 + len(BASELINES)
    for r, region in enumerate(map(str, scores[REGION].values)):
        for c, name in enumerate(names):
            for k, text in enumerate(texts):
                values = [float(value) for value in arrays[:, c, r, k]]
                numbers = [Cell(number_text(value), value) for value in values]
                cells = [
                    units[c],
                    Cell(text, float(days[k])),
                    *numbers[:num],
                    _better(values[:num]),
                    *numbers[num:],
                    Cell(region_text(region), None, "text"),
                ]
                rows.append(TableRow(name, cells, {"region": region, "lead": text}))
    return rows


def _better(values: Sequence[float]) -> Cell:
    """Says whether the first value is below all others that are not NaN."""
    others = [value for value in values[1:] if not np.isnan(value)]
    if np.isnan(values[0]) or not others:
        return Cell("–", None, "text")
    if all(values[0] < other for other in others):
        return Cell("yes", None, "text good")
    return Cell("no", None, "text bad")
