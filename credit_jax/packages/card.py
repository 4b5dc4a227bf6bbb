"""The model card of a package: `README.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from credit_jax.config.messages import counted, printable, typeset_units
from credit_jax.io.open_files import opened
from credit_jax.packages.manifest import (
    ADAPTERS,
    WEIGHTS,
    WITH_ADAPTERS,
    AdapterRecord,
)
from credit_jax.packages.weights import NATIVE
from credit_jax.visualization.labels import field_text

# Scores in the card: this metric of forecasts in this region, with at most so many lead
# times and channels.
_METRIC, _REGION = "rmse", "global"
_MAX_LEADS, _MAX_CHANNELS = 6, 12
_COLUMNS = ("metric", "system", "channel", "units", "region", "lead_hours", "value")

_TEMPLATE = "card.md"


@dataclass(frozen=True)
class CardFacts:
    """The contents of a model card.

    Attributes:
        name: name of the model.
        license: an SPDX identifier, or "unknown".
        model_type: `model.type`.
        parameters: number of parameters.
        weights: "moving average" or "last weights".
        step: step of the checkpoint.
        names: "CREDIT" or "credit_jax", whose names the weights have.
        grid: description of the grid.
        timestep: time step of the model.
        frames: number of input times.
        inputs, outputs: variables in channel order.
        dates: dates of the training data.
        training: loss, optimizer, epochs.
        data: YAML lines of the data section for a user to fill in.
        version: version of credit_jax.
        schema: version of the layout.
        file: name of the file of the weights.
        options: further options of the command that forecasts.
    """

    name: str
    license: str
    model_type: str
    parameters: int
    weights: str
    step: int
    names: str
    grid: str
    timestep: str
    frames: int
    inputs: str
    outputs: str
    dates: str
    training: str
    data: str
    version: str
    schema: int
    file: str = WEIGHTS
    options: str = ""

    def of_adapters(self, record: AdapterRecord) -> CardFacts:
        """The facts of a package that has the adapters alone."""
        base = f"{record.base}, whose weights have the digest {record.base_digest}"
        return replace(
            self,
            weights=f"adapters of rank {record.rank}, {self.weights}",
            names=NATIVE,
            training=f"{self.training}, adapters on {base}",
            schema=WITH_ADAPTERS,
            file=ADAPTERS,
            options=" --base BASE",
        )


def write_card(path: Path, facts: CardFacts, scores: Path | None = None) -> None:
    """Writes the card.

    Args:
        path: path of the file.
        facts: facts of the model.
        scores: scores.csv of `credit-jax score`.

    Raises:
        ValueError: `scores` is not a table of scores.
    """
    table = "None were given." if scores is None else _score_table(scores)
    template = (
        files("credit_jax.packages").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    )
    times = counted(facts.frames, "time")
    texts = {
        name: markdown_text(value) if isinstance(value, str) else value
        for name, value in vars(facts).items()
    }
    head = {"spdx": _yaml_text(facts.license), "tag": _yaml_text(facts.model_type)}
    text = template.format(
        **texts | {"data": facts.data}, **head, times=times, scores=table
    )
    path.write_text(text, encoding="utf-8")


def markdown_text(text: str) -> str:
    r"""A text of others as it is shown in Markdown: no links, HTML, cells or lines.

    >>> markdown_text("T|<b>\n[x](y)")
    'T\\|\\<b\\>\\\\n\\[x\\](y)'
    """
    shown = printable(text).replace("\n", "\\n").replace("\t", " ")
    return re.sub(r"[\\`|<>\[\]*&]", r"\\\g<0>", shown)


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
    leads = _leads(sorted(set(table_rows["lead_hours"])))
    rows = [["RMSE, global", *(f"{lead:g} h" for lead in leads)]]
    for name in channels:
        part = table_rows.loc[table_rows["channel"] == name].set_index("lead_hours")
        unit = typeset_units(str(part["units"].iloc[0]))
        label = _label(str(name), part.iloc[0])
        label = f"{label} ({unit})" if unit and unit != "nan" else label
        cells = (part["value"].get(lead) for lead in leads)
        rows.append([label, *(f"{c:.4g}" if c is not None else "" for c in cells)])
    seen = _training_dates(path)
    return "\n".join(_markdown(rows)) + f"\n\n{seen} All scores are in `scores.csv`."


def _training_dates(path: Path) -> str:
    """Whether the scores are of training dates, by the scores.nc beside the table."""
    beside, known = path.with_suffix(".nc"), "unknown"
    if beside.is_file():
        with opened(beside) as scores:
            known = str(scores.attrs.get("training_dates", known))
    if known == "unknown":
        return "Whether their dates are held out is not recorded."
    return (
        f"{known[0].upper()}{known[1:]}."
        if known != "none"
        else ("No date is in the training period.")
    )


def _label(channel: str, row: pd.Series) -> str:
    """Variable and level of a channel; its key in tables of earlier versions."""
    if "level_units" not in row:
        return channel
    units: Any = row["level_units"]
    variable, level = str(row["variable"]), float(row["level"])  # pyright: ignore
    return field_text(variable, level, units if isinstance(units, str) else "")


def _leads(leads: Sequence[float]) -> Sequence[float]:
    """At most _MAX_LEADS evenly spaced lead times, including the last one."""
    every = -(-len(leads) // _MAX_LEADS)
    return leads[::-1][::every][::-1]


def _markdown(rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for place, row in enumerate(rows):
        yield f"| {' | '.join(map(markdown_text, row))} |"
        if place == 0:
            yield "|" + "---|" * len(row)


def data_lines(keys: Sequence[str]) -> str:
    """Returns indented YAML lines of the data section for a user to fill in.

    Args:
        keys: dotted keys of the missing paths, relative to the section.
    """
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
