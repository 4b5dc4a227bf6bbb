"""HTML elements, sortable tables and images."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from credit_jax.config.messages import printable
from credit_jax.visualization.labels import number_text

# No HTML has them; a terminal that shows the page's source would obey them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: shown, escaped.
        value: sort key of the column; NaN is last; None sorts by text.
        kind: CSS class.
    """

    text: str
    value: float | None = None
    kind: str = ""

    @property
    def html(self) -> str:
        """The `<td>` element."""
        attributes = {"class": self.kind} if self.kind else {}
        if self.value is not None:
            attributes["data-value"] = (
                "" if math.isnan(self.value) else repr(self.value)
            )
        return element("td", escape(self.text), attributes)


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        name: name in the first column.
        cells: cells of the others.
        data: values by which the row can be filtered, by name.
    """

    name: str
    cells: Sequence[Cell]
    data: Mapping[str, str] = field(default_factory=dict)


def number_cell(value: float) -> Cell:
    """Returns a cell with a number, sorted by its full value."""
    return Cell(number_text(value), float(value))


def element(
    tag: str, content: str = "", attributes: Mapping[str, str] | None = None
) -> str:
    """Returns an element; its content is HTML, values of attributes are escaped.

    >>> element("p", "a", {"title": "<"})
    '<p title="&lt;">a</p>'
    """
    rendered = (
        f' {k}="{escape(v, quote=True)}"' for k, v in (attributes or {}).items()
    )
    return f"<{tag}{''.join(rendered)}>{content}</{tag}>"


def table(
    name: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[TableRow],
    caption: str,
) -> str:
    """Returns a table that can be sorted by any column.

    Args:
        name: its id.
        columns: (heading, whether it contains text) of each, that of names first.
        rows: rows with one cell fewer than there are columns.
        caption: caption for screen readers.
    """
    heads = "".join(
        element("th", escape(text), _head(is_text)) for text, is_text in columns
    )
    body = "\n".join(_row(row) for row in rows)
    head = element("thead", element("tr", heads))
    content = f"{head}\n{element('tbody', body)}"
    attributes = {"class": "sortable", "id": name, "aria-label": caption}
    inner = element("table", content, attributes)
    return element("div", inner, {"class": "scroll tall"})


def _head(is_text: bool) -> dict[str, str]:
    return {"scope": "col", **({"class": "text"} if is_text else {})}


def _row(row: TableRow) -> str:
    cells = "".join(cell.html for cell in row.cells)
    data = {f"data-{name}": value for name, value in row.data.items()}
    name = element("th", escape(row.name), {"scope": "row"})
    return element("tr", name + cells, data)


def select(name: str, label: str, texts: Mapping[str, str], chosen: str) -> str:
    """Returns a menu; if there are several choices, with an additional choice "all".

    Args:
        name: name of the filtered values (`TableRow.data`).
        label: text next to the menu.
        texts: texts by value.
        chosen: the value of the initial choice.
    """
    every = {"": "all"} if len(texts) > 1 else {}
    return _menu(name, label, {**texts, **every}, chosen)


def choices(
    name: str,
    contents: Mapping[str, str],
    texts: Mapping[str, str],
    chosen: str,
    variables: Sequence[str],
) -> str:
    """Returns contents of which one is shown, with menus where there are several.

    The others are templates, which a browser builds when they are chosen.

    Args:
        name: name of what is chosen, and label of the menu.
        contents: HTML by key; figures have the attribute `data-variable`.
        texts: texts of the menu, by key.
        chosen: key of the initial choice.
        variables: variables by which figures can be filtered.
    """
    parts = []
    for key, content in contents.items():
        tag = "div" if key == chosen else "template"
        parts.append(element(tag, content, {"data-choice": key}))
    menus = ""
    if len(contents) > 1:
        shown = {key: texts[key] for key in contents}
        menus += _menu("choice", name, shown, chosen)
    if len(variables) > 1:
        every = {"": "all", **{variable: variable for variable in variables}}
        menus += _menu("variable", "variable", every, "")
    if menus:
        menus = element("div", menus, {"class": "filters", "hidden": ""})
    return element("div", menus + "".join(parts), {"class": "choices"})


def _menu(name: str, label: str, texts: Mapping[str, str], chosen: str) -> str:
    options = "".join(
        element("option", escape(text), _option(value, is_chosen=value == chosen))
        for value, text in texts.items()
    )
    return element("label", f"{label} {element('select', options, {'name': name})}")


def _option(value: str, *, is_chosen: bool) -> dict[str, str]:
    return {"value": value, **({"selected": ""} if is_chosen else {})}


def image(png: bytes, text: str) -> str:
    """Returns a PNG embedded in the page, with a caption."""
    data = base64.b64encode(png).decode()
    shown = f'<img alt="{escape(text, quote=True)}" src="data:image/png;base64,{data}">'
    return element("figure", shown + element("figcaption", escape(text)))


def definitions(pairs: Mapping[str, str]) -> str:
    """Returns a list of names and values; long values are collapsed."""
    items = []
    for name, value in pairs.items():
        shown = escape(value)
        if len(value) > 200:
            brief = element("summary", f"{escape(value[:60])} …")
            shown = element("details", brief + element("pre", shown))
        items.append(element("dt", escape(name)) + element("dd", shown))
    return element("dl", "".join(items))


def document(title: str, body: str) -> str:
    r"""Returns a page with its styles and its script, which needs no network.

    Control characters of names in files of others are written out, such as \x1b.

    Args:
        title: title of the page, plain text.
        body: HTML.
    """
    css, script = (
        files("credit_jax.visualization").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n{body}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )
    return _CONTROL.sub(lambda match: printable(match[0]), page)
