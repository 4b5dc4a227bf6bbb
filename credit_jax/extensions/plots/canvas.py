"""Matplotlib figures: style, panels, charts of lines, labels of leads and channels.

Figures are made without pyplot, which keeps global state, so any thread may draw. A
panel is a drawing on one pair of axes, for a figure of several. Hundreds of charts of
lines and bars are on a page of scores, where page.js draws them from their numbers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.config.messages import superscript, typeset_units
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


DAY = np.timedelta64(1, "D")


def lead_text(lead: Any) -> str:
    """Formats a lead time."""
    length: Any = pd.Timedelta(lead)
    parts = length.components
    named = [(parts.days, "d"), (parts.hours, "h"), (parts.minutes, "min")]
    return " ".join(f"{count} {unit}" for count, unit in named if count) or "0 h"


def level_text(level: float, units: str = "") -> str:
    """Formats a level; units are "hPa", "sigma" or others, "" for a number."""
    if units == "sigma":
        return f"sigma {level:g}"
    return f"{level:g} {units}" if units else f"level {level:g}"


def field_text(variable: str, level: float | None, units: str = "") -> str:
    """Names a variable and its level: "T at 500 hPa"; without a level the variable."""
    if level is None or math.isnan(level):
        return variable
    return f"{variable} at {level_text(level, units)}"


def channel_text(scores: xr.Dataset, channel: str) -> str:
    """Names a channel of scores by its variable and level, such as "T at 500 hPa"."""
    index = scores.get_index("channel").get_loc(channel)
    units = ""
    if "level_units" in scores.coords:
        units = str(scores["level_units"].values[index])
    variable, level = scores["variable"].values[index], scores["level"].values[index]
    return field_text(str(variable), float(level), units)


# Names of regions that are not their keys with blanks.
_REGIONS = {
    "global": "globe",
    "ausnz": "Australia and New Zealand",
    "extra-tropics": "extratropics",
    "arctic": "Arctic",
    "antarctic": "Antarctic",
}


def region_text(region: str) -> str:
    """Names a region."""
    if region in _REGIONS or region.startswith("network "):
        return _REGIONS.get(region, region)
    text = region.replace("-", " ")
    return text if text.endswith(("hemisphere", "tropics")) else text.title()


def with_units(text: str, units: str) -> str:
    """Text with units in brackets, if there are any; "1" is none."""
    return f"{text} ({units})" if units not in ("", "1") else text


def channel_units(scores: xr.Dataset, channel: str, power: int = 1) -> str:
    """Units of a channel to a power, as they are set; empty if unknown."""
    if "units" not in scores.coords:
        return ""
    index = scores.get_index("channel").get_loc(channel)
    return typeset_units(str(scores["units"].values[index]), power)


def number_text(value: float) -> str:
    """Formats a number with three significant digits; a dash if it is not finite.

    >>> number_text(0.0012345), number_text(53211.7), number_text(float("nan"))
    ('0.00123', '53200', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    text = f"{value:.2e}"
    size = int(text.partition("e")[2])
    if -4 <= size <= 5:
        return f"{float(text):.{max(0, 2 - size)}f}"
    return text


# Dashes of matplotlib's line styles, in units of the SVG of the page.
DASHES = {"-": "none", "--": "5 3", "-.": "5 2.5 1.2 2.5", ":": "1.5 2.5"}


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a chart, or its bars."""

    name: str  # name for legends
    # Points; values that are not finite are gaps.
    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    # Color, and optionally linestyle and linewidth, as matplotlib names them.
    look: Mapping[str, Any]
    has_markers: bool = False  # whether points are marked


@dataclass(frozen=True, eq=False)
class Chart:
    """Lines on one pair of axes."""

    title: str  # title above it, with the units of y where these have no label
    x_label: str  # label below it
    lines: Sequence[Line]  # lines in the order in which they are drawn
    y_label: str = ""  # label of y inside of a figure
    # Whether an axis is logarithmic; values must be above 0.
    x_is_log: bool = False
    y_is_log: bool = False
    has_integer_x: bool = False  # whether x are whole numbers, and so are its ticks
    y_from: float | None = None  # lowest value of the y axis; None is that of the lines
    level: float | None = None  # y of a thin horizontal line; None for none
    has_legend: bool = False  # whether the lines are named inside of a figure
    bar_width: float = 0.0  # width of bars in units of x; 0 draws lines

    @property
    def panel(self) -> Panel:
        """The chart for a figure of matplotlib."""
        return Panel(self.title, self._draw)

    def _draw(self, axis: Any) -> None:
        for line in self.lines:
            color, width = line.look["color"], self.bar_width
            if width:
                axis.bar(line.x, line.y, width, color=color, label=line.name)
                continue
            marker = {"marker": "o", "markersize": 3.0} if line.has_markers else {}
            axis.plot(line.x, line.y, label=line.name, **{**marker, **line.look})
        from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

        if self.y_is_log:
            axis.set_yscale("log")
            # Matplotlib's own are formulas.
            axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _power(y)))
            axis.yaxis.set_minor_formatter(NullFormatter())
        if self.x_is_log:
            axis.set_xscale("log")
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        elif not self.bar_width:
            axis.set_xlim(left=0)
        if self.has_integer_x:
            axis.xaxis.get_major_locator().set_params(integer=True)
        if self.y_from is not None:
            axis.set_ylim(bottom=self.y_from)
        if self.level is not None:
            dash = {"linewidth": 1.0, "linestyle": "--"} if self.bar_width else {}
            axis.axhline(self.level, color="#8a8f98", **{"linewidth": 0.8, **dash})
        axis.set(xlabel=self.x_label, ylabel=self.y_label)
        axis.grid(not self.bar_width)
        if self.has_legend:
            axis.legend(fontsize=7, framealpha=0, handlelength=1.2)

    @property
    def data(self) -> dict[str, Any]:
        """The chart for page.js: numbers have four digits, or are None."""
        lines = [
            {
                "name": line.name,
                "x": _rounded(line.x, is_log=self.x_is_log),
                "y": _rounded(line.y, is_log=self.y_is_log),
                "color": line.look["color"],
                "width": line.look.get("linewidth", 1.5),
                "dash": DASHES[line.look.get("linestyle", "-")],
                "has_markers": line.has_markers,
            }
            for line in self.lines
        ]
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"lines": lines}


def _rounded(values: np.ndarray, *, is_log: bool) -> list[float | None]:
    drawn = np.isfinite(values) & ((values > 0) | (not is_log))
    return [
        float(f"{v:.4g}") if d else None for v, d in zip(values, drawn, strict=True)
    ]


def _power(value: float) -> str:
    """A tick of a logarithmic axis: plain from 0.01 to 9999, else a power of ten."""
    exponent = round(float(np.log10(value)))
    if -2 <= exponent <= 3 or not np.isclose(value, 10.0**exponent, atol=0.0):
        return f"{value:g}"
    return f"10{superscript(exponent)}"
