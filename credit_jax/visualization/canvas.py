"""Matplotlib figures: their style, their panels, conversion to files, SVG or PNG bytes.

Figures are made without pyplot, which keeps global state, so any thread may draw. A
panel is a drawing on one pair of axes, for a figure of several or for a page.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from credit_jax.io.atomic import new_file

# The color of text and lines; in SVG it is that of the text around the figure, so that
# figures follow a dark scheme.
INK = "#1b1f24"
SUFFIXES = (".png", ".svg", ".pdf")
PNG_DPI = 110  # pixels per inch of a file
_STYLE: dict[Any, Any] = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "svg.fonttype": "none",
    # Names of variables and units are no formulas, whatever dollar signs they have.
    "text.parse_math": False,
    "text.usetex": False,
    # Makes the ids of elements reproducible.
    "svg.hashsalt": "credit_jax",
}


@contextmanager
def style() -> Iterator[None]:
    """Context manager that sets the style of everything drawn in the block."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure.

    Args:
        width: inches.
        height: inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path) -> Path:
    """Writes a figure; the suffix of the file selects the format.

    Args:
        figure: figure, as returned by `new_figure`.
        path: path of the file.

    Raises:
        ValueError: the suffix is not one of SUFFIXES.
    """
    path = Path(path)
    check_suffix(path, SUFFIXES)
    with style(), new_file(path) as partial:
        figure.savefig(partial, dpi=PNG_DPI, format=path.suffix[1:])
    return path


def check_suffix(path: Path, suffixes: tuple[str, ...]) -> None:
    """Checks the suffix of an output file.

    Raises:
        ValueError: the suffix is not one of `suffixes`.
    """
    if path.suffix not in suffixes:
        raise ValueError(
            f"{path}: the format is that of the suffix, one of {', '.join(suffixes)}, "
            f"got {path.suffix or 'none'!r}"
        )


def png_of(figure: Any, *, dpi: int = 100) -> bytes:
    """Returns a figure as PNG bytes."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, dpi=dpi, format="png")
    return file.getvalue()


def svg_of(figure: Any, prefix: str, label: str) -> str:
    """Returns a figure as an `<svg>` element for an HTML page.

    It has no background, fills the width of the enclosing element and has its text
    color.

    Args:
        figure: figure, as returned by `new_figure`.
        prefix: prefix of all ids in it; must be unique for each figure of the page.
        label: description for screen readers, escaped.
    """
    file = io.StringIO()
    with style():
        figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # Style elements would apply to the whole page.
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]+;", "", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    box = re.search(r'viewBox="[^"]+"', text)
    assert box is not None, "matplotlib writes one"
    head = f'<svg role="img" aria-label="{label}" {box[0]}>'
    text = head + text[text.index(">") + 1 :]
    return text.replace(INK, "currentColor").strip()


_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class Panel:
    """A drawing on one pair of axes.

    Attributes:
        title: title above it.
        draw: draws on matplotlib axes.
        width: inches.
        height: inches.
    """

    title: str
    draw: Callable[[Any], None]
    width: float = 3.4
    height: float = 2.4


def panels_figure(
    panels: Sequence[Panel], *, title: str, columns: int = 4, legend: bool = True
) -> Any:
    """Returns a figure of panels, row by row.

    Args:
        panels: panels, at least one.
        title: title of the whole.
        columns: maximum number of panels in a row.
        legend: whether to show the labels of the first panel below the title.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = columns * max(panel.width for panel in panels)
    height = rows * max(panel.height for panel in panels) + 0.6
    with style():
        figure = new_figure(max(width, 4.5), height)
        axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(panels))]
        for axis, panel in zip(axes, panels, strict=True):
            panel.draw(axis)
            axis.set_title(panel.title if len(panels) > 1 else title)
        if len(panels) > 1:
            figure.suptitle(title)
        handles, labels = axes[0].get_legend_handles_labels()
        if legend and labels:
            figure.legend(
                handles, labels, loc="outside lower center", ncols=len(labels)
            )
    return figure


def panel_svg(panel: Panel, prefix: str) -> str:
    """Returns a panel as an `<svg>` element, without its title.

    Args:
        panel: panel to draw.
        prefix: prefix of all ids in it.
    """
    with style():
        figure = new_figure(panel.width, panel.height)
        panel.draw(figure.add_subplot())
    return svg_of(figure, prefix, escape(panel.title, quote=True))
