"""The tables of the page of scores, and sentences that summarize them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.evaluation.scores import FORECAST
from credit_jax.visualization.curves import NAMES
from credit_jax.visualization.html import (
    Cell,
    TableRow,
    element,
    number_cell,
    select,
    table,
)
from credit_jax.visualization.labels import (
    channel_text,
    channel_units,
    lead_text,
    region_text,
)
from credit_jax.visualization.summary import (
    BASELINES,
    Skillful,
    chosen_leads,
    skillful_until,
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
)


def channels_of(scores: xr.Dataset) -> list[str]:
    """All channels."""
    return [str(name) for name in scores["channel"].values]


def verdict(scores: xr.Dataset, region: str) -> str:
    """Says until which lead time forecasts beat each baseline, in one sentence each."""
    sentences = []
    first = lead_text(scores["prediction_timedelta"].values[0])
    for baseline in BASELINES:
        skills = {
            channel_text(scores, channel): skill
            for channel in channels_of(scores)
            if (skill := skillful_until(scores, channel, baseline, region=region))
        }
        if skills:
            sentences.append(element("li", escape(_sentence(skills, baseline, first))))
    return element("ul", "".join(sentences)) if sentences else ""


def _sentence(skills: dict[str, Skillful], baseline: str, first: str) -> str:
    never = [name for name, skill in skills.items() if skill.until is None]
    ending = [
        name for name, skill in skills.items() if skill.until and not skill.to_the_end
    ]
    start = f"The RMSE is below that of {baseline}"
    if not never and not ending:
        last = lead_text(next(iter(skills.values())).until)
        return f"{start} at every lead time, to {last}, for all {len(skills)} channels."
    num = len(skills) - len(never)
    if num == 0:
        return f"{start} at the first lead time, {first}, for no channel."
    text = f"{start} at the first lead time, {first}, for "
    if never:
        text += f"{num} of {len(skills)} channels; not for {_few(never)}."
    else:
        text += f"all {num} channels."
    if ending:
        ends: dict[str, Any] = {name: skills[name].until for name in ending}
        first_end, last_end = min(ends.values()), max(ends.values())
        text += f" This ends first for {_tied(ends, first_end)}"
        if first_end != last_end:
            text += f", and last for {_tied(ends, last_end)}"
        lasting = len(skills) - len(never) - len(ending)
        text += (
            f"; it holds to the end for {lasting} of {len(skills)}." if lasting else "."
        )
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


def skill_table(scores: xr.Dataset, region: str) -> str:
    """Table, by channel, of the last lead time with an RMSE below each baseline's."""
    columns = [
        ("channel", True),
        *((f"beats {name} until", False) for name in BASELINES),
    ]
    columns += [("variable", True)]
    rows = []
    for channel in channels_of(scores):
        cells = []
        for baseline in BASELINES:
            skill = skillful_until(scores, channel, baseline, region=region)
            if skill is None:
                cells.append(Cell("–", float("nan")))
            else:
                kind = "bad" if skill.until is None else "good" * skill.to_the_end
                cells.append(Cell(skill.text, skill.days, kind))
        cells.append(_text(scores, "long_name", channel))
        rows.append(TableRow(channel_text(scores, channel), cells))
    caption = f"Lead times with skill, {region_text(region)}"
    return table("skill-table", columns, rows, caption)


def _units(scores: xr.Dataset, channel: str) -> tuple[str, None, str]:
    return channel_units(scores, channel), None, "text"


def _text(scores: xr.Dataset, coordinate: str, channel: str) -> Cell:
    text = ""
    for name in (coordinate, "variable"):
        if not text and name in scores.coords:
            text = str(scores[name].sel(channel=channel).item())
    return Cell(text, None, "text")


def score_table(scores: xr.Dataset, region: str) -> str:
    """Table of all metrics by channel, region and chosen lead time, with filter menus.

    Args:
        scores: scores, see `credit_jax.evaluation.scores`.
        region: initial choice of the menu.
    """
    leads = chosen_leads(scores)
    regions = {name: region_text(name) for name in map(str, scores["region"].values)}
    others = [
        metric
        for metric in OTHERS
        if metric in scores and _is_of_interest(scores[metric])
    ]
    columns = [("channel", True), ("units", True), ("lead", False), ("RMSE", False)]
    columns += [*((name, False) for name in BASELINES), ("beats both", True)]
    columns += [(NAMES[metric], False) for metric in others]
    columns += [("region", True)]
    rows = _score_rows(scores, leads, others)
    texts = {text: text for text in map(lead_text, leads)}
    menus = select("region", "region", regions, region)
    menus += select("lead", "lead time", texts, next(iter(texts), ""))
    attributes = {"class": "filters", "data-table": "score-table", "hidden": ""}
    note = (
        "Persistence and climatology: their RMSE. RMSE, MAE, bias, activity, CRPS and "
    )
    note += "spread are in the units of the channel, the others are ratios. The other "
    note += "lead times are in scores.csv and scores.nc."
    if int(scores.attrs.get("num_members", 1)) > 1:
        note += " RMSE, MAE, bias, ACC and activity are those of the ensemble mean."
    return (
        element("div", menus, attributes)
        + table("score-table", columns, rows, "Scores at chosen lead times")
        + element("p", note, {"class": "note"})
    )


def _is_of_interest(metric: xr.DataArray) -> bool:
    """Whether a metric has values; for "missing", whether any value is missing."""
    if metric.name == "missing":
        return bool((metric > 0).any())
    return bool(metric.notnull().any())


def _score_rows(
    scores: xr.Dataset, leads: np.ndarray, others: Sequence[str]
) -> list[TableRow]:
    """One row for each region, channel and lead time, in this order."""
    errors = [
        _values(scores, "rmse", system, leads) for system in (FORECAST, *BASELINES)
    ]
    rest = [_values(scores, metric, FORECAST, leads) for metric in others]
    days = [float(lead / np.timedelta64(1, "D")) for lead in leads]
    texts = [lead_text(lead) for lead in leads]
    units = [Cell(*_units(scores, channel)) for channel in channels_of(scores)]
    names = [channel_text(scores, channel) for channel in channels_of(scores)]
    rows = []
    for r, region in enumerate(map(str, scores["region"].values)):
        for c in range(len(names)):
            for k, text in enumerate(texts):
                values = [float(array[c, r, k]) for array in errors]
                cells = [
                    units[c],
                    Cell(text, days[k]),
                    *map(number_cell, values),
                    _better(values),
                    *(number_cell(float(array[c, r, k])) for array in rest),
                    Cell(region_text(region), None, "text"),
                ]
                filtered = {"region": region, "lead": text}
                rows.append(TableRow(names[c], cells, filtered))
    return rows


def _values(
    scores: xr.Dataset, metric: str, system: str, leads: np.ndarray
) -> Float[np.ndarray, "channel region lead"]:
    """A metric of a system at some lead times; NaN if it is not known."""
    dims = ("channel", "region", "prediction_timedelta")
    if metric not in scores or system not in scores["system"].values:
        sizes = scores.sizes["channel"], scores.sizes["region"], len(leads)
        return np.full(sizes, np.nan)
    selected = scores[metric].sel(system=system, prediction_timedelta=leads)
    return selected.transpose(*dims).values


def _better(values: Sequence[float]) -> Cell:
    """Says whether the first value is below all others that are not NaN."""
    others = [value for value in values[1:] if not np.isnan(value)]
    if np.isnan(values[0]) or not others:
        return Cell("–", None, "text")
    if all(values[0] < other for other in others):
        return Cell("yes", None, "text good")
    return Cell("no", None, "text bad")
