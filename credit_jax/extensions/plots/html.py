"""Pages of HTML: one file each, with its styles and its script, that needs no network.

A page has sections of parts; a part is a macro of page.html and its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from credit_jax.config.messages import printable

# No HTML has them; a terminal that shows the page's source would obey them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TEMPLATES = Environment(
    loader=PackageLoader("credit_jax", ""),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


class Cell(NamedTuple):
    """A cell of a table: its text, its sort key, and its CSS class."""

    text: str
    value: float | None = None  # sorts the column, NaN last; None: by text
    kind: str = ""


class TableRow(NamedTuple):
    """A row of a table: its name, cells, and values by which it can be filtered."""

    name: str
    cells: Sequence[Cell]
    data: Mapping[str, str] = {}


@dataclass(frozen=True)
class Part:
    """A part of a page: the macro of page.html that shows it, and its arguments."""

    macro: str
    arguments: Mapping[str, Any]


def part(macro: str, **arguments: Any) -> Part:
    """Returns a part; texts are escaped where they are shown."""
    return Part(macro, arguments)


def page_of_sections(
    title: str, intro: str, sections: Mapping[str, Sequence[Part]]
) -> str:
    r"""Returns a page; empty sections are left out."""
    style, script = (
        files("credit_jax.extensions.plots").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    named = {name: parts for name, parts in sections.items() if parts}
    page = TEMPLATES.get_template("extensions/plots/page.html").render(
        title=title, intro=intro, sections=named, style=style, script=script
    )
    # Names in files of others are not trusted.
    return _CONTROL.sub(lambda match: printable(match[0]), page)
