"""Charts of lines and bars: what curves, spectra and ranks show, drawn by matplotlib.

The page has one for each channel, region and metric, hundreds of them, which page.js
draws from their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config.messages import superscript
from credit_jax.extensions.plots.canvas import Panel

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
