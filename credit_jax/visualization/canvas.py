"""Matplotlib figures: their style, their panels, conversion to files or PNG bytes.

Figures are made without pyplot, which keeps global state, so any thread may draw. A
panel is a drawing on one pair of axes, for a figure of several.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from credit_jax.io.atomic import new_file

# The color of text and lines.
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
    """Returns an empty figure of a width and a height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path) -> Path:
    """Writes a figure; the suffix of the file, one of SUFFIXES, selects the format."""
    path = Path(path)
    check_suffix(path, SUFFIXES)
    with style(), new_file(path) as partial:
        figure.savefig(partial, dpi=PNG_DPI, format=path.suffix[1:])
    return path


def check_suffix(path: Path, suffixes: tuple[str, ...]) -> None:
    """Checks that the suffix of an output file is one of `suffixes`."""
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


@dataclass(frozen=True)
class Panel:
    """A drawing on one pair of matplotlib axes below a title; sizes are inches."""

    title: str
    draw: Callable[[Any], None]
    width: float = 3.4
    height: float = 2.4


def panels_figure(
    panels: Sequence[Panel], *, title: str, columns: int = 4, legend: bool = True
) -> Any:
    """Returns a figure of panels, row by row; the legend is that of the first."""
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
