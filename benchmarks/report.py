"""Reports of benchmarks: tables on the terminal, NAME.md and NAME.json."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.recipe import recipe
from credit_jax.training.display import print_table

REPORTS = Path(__file__).with_name("reports")


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: title on the terminal only.
        header: header of the columns; the first holds text, the others numbers.
        rows: cells as text.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def print(self, console: Console | None = None) -> None:
        """Prints it on the terminal."""
        table = RichTable(title=self.title)
        for name in self.header:
            table.add_column(name)
        for row in self.rows:
            table.add_row(*row)
        print_table(table, console)

    def markdown(self) -> str:
        """The table in markdown."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [self.header, rule, *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def publish(
    name: str,
    sections: Sequence[str | Table],
    results: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    folder: Path,
) -> Path:
    """Prints the tables of a report and writes it with the recipe of this run.

    Args:
        name: name of the report.
        sections: markdown, from the heading on, and tables.
        results: results of the JSON.
        config: options and model that the results depend on.
        folder: folder of the report.

    Returns:
        The path of the markdown.
    """
    for section in sections:
        if isinstance(section, Table):
            section.print()
    data = {"recipe": recipe(config), **results}
    return write_report(name, sections, data, folder)


def write_report(
    name: str,
    sections: Sequence[str | Table],
    data: Mapping[str, Any],
    folder: Path = REPORTS,
) -> Path:
    """Writes `name`.md and `name`.json; an older report of that name is replaced.

    Args:
        name: name of the report.
        sections: markdown, from the heading on, and tables.
        data: data of the JSON; its "recipe" is appended to the markdown.
        folder: created if needed.

    Returns:
        The path of the markdown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(as_lines(data))
    parts = [s if isinstance(s, str) else s.markdown() for s in sections]
    path = folder / f"{name}.md"
    path.write_text("\n\n".join([*parts, _recipe_section(data["recipe"])]) + "\n")
    return path


def as_lines(data: Mapping[str, Any]) -> str:
    """Returns JSON with a line for each key, and for each element of its lists.

    Indented, the tracked reports had 58,000 lines.

    Args:
        data: what is written, by key.
    """

    def text(value: Any) -> str:
        return json.dumps(value, default=str)

    def lines(value: Any) -> str:
        if not isinstance(value, list):
            return text(value)
        return "[\n  " + ",\n  ".join(map(text, value)) + "\n ]"

    entries = (f"{text(key)}: {lines(value)}" for key, value in data.items())
    return "{\n " + ",\n ".join(entries) + "\n}\n"


def add_out_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--out`, the folder of the report."""
    parser.add_argument(
        "--out", type=Path, default=REPORTS, help="folder of the report"
    )


def _recipe_section(recipe: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in recipe["versions"].items() if v)
    config = json.dumps(recipe["config"], indent=1, default=str)
    return "\n".join(
        [
            "## Recipe",
            "",
            f"- date: {recipe['date']}",
            f"- commit: {recipe['commit']}",
            f"- versions: Python {recipe['python']}, {versions}",
            f"- machine: {recipe['machine']}",
            "",
            "```json",
            config,
            "```",
        ]
    )
