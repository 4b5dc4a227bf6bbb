"""The model card of a package: `README.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from credit_jax.config.messages import printable, typeset_units
from credit_jax.extensions.plots.canvas import field_text
from credit_jax.io.open_files import opened

# Scores in the card: this metric of forecasts in this region, with at most so many lead
# times and channels.
_METRIC, _REGION = "rmse", "global"
_MAX_LEADS, _MAX_CHANNELS = 6, 12
_COLUMNS = ("metric", "system", "channel", "units", "region", "lead_hours", "value")


def write_card(
    path: Path, facts: Mapping[str, Any], data: str, scores: Path | None = None
) -> None:
    """Writes the card: facts by their names in card.md, and YAML lines of the data."""
    template = (
        files("credit_jax.extensions.packaging").joinpath("card.md").read_text("utf-8")
    )
    texts = {k: markdown_text(v) if isinstance(v, str) else v for k, v in facts.items()}
    text = template.format(
        **texts,
        spdx=_yaml_text(facts["license"]),
        tag=_yaml_text(facts["model_type"]),
        data=data,
        scores="None were given." if scores is None else _score_table(scores),
    )
    path.write_text(text, encoding="utf-8")


def markdown_text(text: str) -> str:
    r"""A text of others as it is shown in Markdown: no links, HTML, cells or lines.

    >>> markdown_text("T|<b>\n[x](y)")
    'T\\|\\<b\\>\\\\n\\[x\\](y)'
    """
    displayed = printable(text).replace("\n", "\\n").replace("\t", " ")
    return re.sub(r"[\\`|<>\[\]*&]", r"\\\g<0>", displayed)


def _score_table(path: Path) -> str:
    """RMSE of forecasts by channel and lead time, as Markdown."""
    table = pd.read_csv(path, low_memory=False)
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(
            f"--scores: {path} has no column {', '.join(missing)}; expected scores.csv "
            "of credit-jax score"
        )
    chosen = {"metric": _METRIC, "region": _REGION, "system": "forecast"}
    table_rows = table.loc[(table[[*chosen]] == [*chosen.values()]).all(axis=1)]
    if table_rows.empty:
        return f"`scores.csv` has no {_METRIC} of forecasts; all scores are there."
    channels = list(dict.fromkeys(table_rows["channel"]))[:_MAX_CHANNELS]
    leads = sorted(set(table_rows["lead_hours"]))
    # Evenly spaced, the last one among them.
    leads = leads[::-1][:: -(-len(leads) // _MAX_LEADS)][::-1]
    rows = [["RMSE, global", *(f"{lead:g} h" for lead in leads)]]
    for name in channels:
        part = table_rows.loc[table_rows["channel"] == name].set_index("lead_hours")
        unit = typeset_units(str(part["units"].iloc[0]))
        label = _label(str(name), part.iloc[0])
        label = f"{label} ({unit})" if unit and unit != "nan" else label
        cells = (part["value"].get(lead) for lead in leads)
        rows.append([label, *(f"{c:.4g}" if c is not None else "" for c in cells)])
    lines = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    # Whether they are of training dates, by the scores.nc beside the table.
    beside, seen = path.with_suffix(".nc"), "unknown"
    if beside.is_file():
        with opened(beside) as scores:
            seen = str(scores.attrs.get("training_dates", seen))
    sentence = {
        "unknown": "Whether their dates are held out is not recorded.",
        "none": "No date is in the training period.",
    }.get(seen, f"{seen[:1].upper()}{seen[1:]}.")
    return "\n".join((*lines, "", f"{sentence} All scores are in `scores.csv`."))


def _label(channel: str, row: pd.Series) -> str:
    """Variable and level of a channel; its key in tables of earlier versions."""
    if "level_units" not in row:
        return channel
    units: Any = row["level_units"]
    variable, level = str(row["variable"]), float(row["level"])  # pyright: ignore
    return field_text(variable, level, units if isinstance(units, str) else "")


def data_lines(keys: Sequence[str]) -> str:
    """Returns YAML lines of a data section whose dotted keys a user fills in."""
    tree: dict[str, Any] = {}
    for dotted in keys:
        *parents, last = dotted.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = "..."
    lines = list(_lines(tree, 1)) or ["    {}  # every source finds its data itself"]
    return "\n".join(lines)


def _lines(tree: Mapping[str, Any], depth: int) -> Iterable[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{'    ' * depth}{_yaml_text(key)}:"
            yield from _lines(value, depth + 1)
        else:
            yield f"{'    ' * depth}{_yaml_text(key)}: {value}"


def _yaml_text(text: str) -> str:
    """A text as YAML has it: in quotes unless it is a plain name."""
    return text if re.fullmatch(r"[A-Za-z][\w.-]*", text) else json.dumps(text)
