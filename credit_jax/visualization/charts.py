"""Charts of lines: what curves and spectra show, for figures and for the page.

Figures are drawn by matplotlib. The page has one chart for each channel, region and
metric, hundreds of them, which are written as SVG of about a kilobyte each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config.messages import superscript
from credit_jax.visualization.canvas import Panel

# Dashes of matplotlib's line styles, in units of the SVG.
DASHES = {"-": "none", "--": "5 3", "-.": "5 2.5 1.2 2.5", ":": "1.5 2.5"}
# Size of a chart, and its margins: left, right, top, bottom.
_WIDTH, _HEIGHT = 320.0, 215.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 8.0, 8.0, 36.0
_NUM_TICKS = 5


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a chart.

    Attributes:
        name: name for legends.
        x, y: points; values that are not finite are gaps.
        look: color, and optionally linestyle and linewidth, as matplotlib names them.
        has_markers: whether points are marked.
    """

    name: str
    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    look: Mapping[str, Any]
    has_markers: bool = False


@dataclass(frozen=True, eq=False)
class Chart:
    """Lines on one pair of axes.

    Attributes:
        title: title above it, with the units of y where these have no label.
        x_label: label below it.
        lines: lines in the order in which they are drawn.
        y_label: label of y inside of a figure.
        x_is_log, y_is_log: whether an axis is logarithmic; values must be above 0.
        x_is_whole: whether x are whole numbers, and so are its ticks.
        y_from: lowest value of the y axis; None is that of the lines.
        level: y of a thin horizontal line; None for none.
        has_legend: whether the lines are named inside of a figure.
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    y_label: str = ""
    x_is_log: bool = False
    y_is_log: bool = False
    x_is_whole: bool = False
    y_from: float | None = None
    level: float | None = None
    has_legend: bool = False

    @property
    def panel(self) -> Panel:
        """The chart for a figure of matplotlib."""
        return Panel(self.title, self._draw)

    def _draw(self, axis: Any) -> None:
        for line in self.lines:
            marker = {"marker": "o", "markersize": 3.0} if line.has_markers else {}
            axis.plot(line.x, line.y, label=line.name, **{**marker, **line.look})
        from matplotlib.ticker import (
            FuncFormatter,
            MaxNLocator,
            NullFormatter,
            NullLocator,
        )

        if self.y_is_log:
            axis.set_yscale("log")
            # Matplotlib's own are formulas.
            axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _power(y)))
            axis.yaxis.set_minor_formatter(NullFormatter())
        if self.x_is_log:
            axis.set_xscale("log")
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        else:
            axis.set_xlim(left=0)
        if self.x_is_whole:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if self.y_from is not None:
            axis.set_ylim(bottom=self.y_from)
        if self.level is not None:
            axis.axhline(self.level, color="#8a8f98", linewidth=0.8)
        axis.set(xlabel=self.x_label, ylabel=self.y_label)
        axis.grid(True)
        if self.has_legend:
            axis.legend(fontsize=7, framealpha=0, handlelength=1.2)

    @property
    def svg(self) -> str:
        """The chart as an `<svg>` element in the text color of the page."""
        frame = _Frame.of(self)
        parts = [frame.grid(self.x_label)]
        if self.level is not None:
            y = _text(frame.y_axis.places(np.array([self.level]))[0])
            parts.append(
                f'<path d="M{_LEFT:g} {y}H{_WIDTH - _RIGHT:g}" stroke="#8a8f98"/>'
            )
        parts += [frame.line(line) for line in self.lines]
        label = escape(self.title, quote=True)
        return (
            f'<svg class="chart" role="img" aria-label="{label}" '
            f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{"".join(parts)}</svg>'
        )


@dataclass(frozen=True)
class _Axis:
    """An axis of a chart in SVG.

    Attributes:
        is_log: whether it is logarithmic.
        low, high: lowest and highest value.
        start, end: their positions.
        is_whole: whether ticks are whole numbers.
    """

    is_log: bool
    low: float
    high: float
    start: float
    end: float
    is_whole: bool = False

    def places(self, values: np.ndarray) -> Float[np.ndarray, " value"]:
        """Positions of values; NaN where a logarithm does not exist."""
        values, low, high = np.asarray(values, float), self.low, self.high
        if self.is_log:
            values = np.log(np.where(values > 0, values, np.nan))
            low, high = np.log(low), np.log(high)
        return self.start + (self.end - self.start) * (values - low) / (high - low)

    def named_ticks(self) -> list[tuple[float, str]]:
        """Position and text of each tick."""
        if self.is_log:
            ticks = _log_ticks(self.low, self.high)
            names = [_power(value) for value in ticks]
        else:
            ticks = _ticks(self.low, self.high, 1.0 if self.is_whole else 0.0)
            names = _tick_names(ticks)
        return [*zip(self.places(ticks).tolist(), names, strict=True)]


def _label(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{_text(x)}" y="{_text(y)}"'
    return f'<text {place} text-anchor="{anchor}">{escape(text)}</text>'


def _from_zero(values: np.ndarray) -> tuple[float, float]:
    return 0.0, float(values.max(initial=0.0)) or 1.0


@dataclass(frozen=True, eq=False)
class _Frame:
    """The axes of a chart in SVG.

    Attributes:
        x_axis, y_axis: the two axes, in units of the SVG; that of y goes upward.
    """

    x_axis: _Axis
    y_axis: _Axis

    @classmethod
    def of(cls, chart: Chart) -> _Frame:
        """The axes that hold all lines."""
        x, y = (
            np.concatenate([getattr(line, name) for line in chart.lines])
            for name in ("x", "y")
        )
        y = np.append(y, [v for v in (chart.y_from, chart.level) if v is not None])
        x, y = x[np.isfinite(x)], y[np.isfinite(y)]
        x_range = _log_range(x, pad=0.0) if chart.x_is_log else _from_zero(x)
        y_range = _log_range(y, pad=0.04) if chart.y_is_log else _range(y, chart.y_from)
        return cls(
            _Axis(chart.x_is_log, *x_range, _LEFT, _WIDTH - _RIGHT, chart.x_is_whole),
            _Axis(chart.y_is_log, *y_range, _HEIGHT - _BOTTOM, _TOP),
        )

    def grid(self, x_label: str) -> str:
        """Axes, ticks and grid lines."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        across, down, names = [], [], []
        for y, name in self.y_axis.named_ticks():
            across.append(f"M{_LEFT:g} {_text(y)}H{right:g}")
            names.append(_label(_LEFT - 5, y + 3.5, "end", name))
        for x, name in self.x_axis.named_ticks():
            down.append(f"M{_text(x)} {_TOP:g}V{bottom:g}")
            names.append(_label(x, bottom + 14, "middle", name))
        names.append(_label((_LEFT + right) / 2, bottom + 30, "middle", x_label))
        return (
            f'<path class="grid" d="{"".join(across + down)}"/>'
            f'<path class="axes" d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{right:g}"/>'
            f"{''.join(names)}"
        )

    def line(self, line: Line) -> str:
        """A line, interrupted where a value is not finite, and its markers."""
        places = self.x_axis.places(line.x), self.y_axis.places(line.y)
        points = np.stack(places, axis=1)
        known = np.isfinite(places[0] + places[1])
        path, pen = [], "M"
        for is_known, (x, y) in zip(known, points, strict=True):
            if is_known:
                path.append(f"{pen}{_text(x)} {_text(y)}")
            pen = "L" if is_known else "M"
        look = line.look
        style = (
            f'stroke="{look["color"]}" stroke-width="{look.get("linewidth", 1.5):g}"'
        )
        dash = DASHES[look.get("linestyle", "-")]
        dash = "" if dash == "none" else f' stroke-dasharray="{dash}"'
        name = escape(line.name)
        drawn = (
            f'<path class="line" d="{"".join(path)}" {style}{dash}>'
            f"<title>{name}</title></path>"
        )
        if line.has_markers:
            dots = "".join(f"M{_text(x)} {_text(y)}h0" for x, y in points[known])
            drawn += f'<path class="dots" d="{dots}" stroke="{look["color"]}"/>'
        return drawn


def _text(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _range(values: np.ndarray, bottom: float | None) -> tuple[float, float]:
    """Range of an axis: that of the values, a little wider."""
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    margin = 0.05 * (high - low)
    return (low - margin if bottom is None else bottom), high + margin


def _log_range(values: np.ndarray, pad: float) -> tuple[float, float]:
    values = values[values > 0]
    if not values.size:
        return 1.0, 10.0
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return low / 2, high * 2
    wide = (high / low) ** pad
    return low / wide, high * wide


def _ticks(low: float, high: float, least: float = 0.0) -> np.ndarray:
    """About `_NUM_TICKS` multiples of 1, 2 or 5 times a power of ten.

    >>> _ticks(0, 1, least=1).tolist()
    [0.0, 1.0]
    """
    rough = max((high - low) / _NUM_TICKS, least)
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(n for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return step * np.arange(first, last + 1) + 0.0  # no -0


def _log_ticks(low: float, high: float) -> np.ndarray:
    """Powers of ten, at most six; of few 1, 2 and 5 times these, or others.

    >>> _log_ticks(0.7, 0.97).round(3).tolist()
    [0.7, 0.8, 0.9]
    """
    low, high = low * (1 - 1e-9), high * (1 + 1e-9)
    first, last = np.ceil(np.log10(low)), np.floor(np.log10(high))
    exponents = np.arange(first, last + 1)
    if len(exponents) > 2:
        return 10.0 ** exponents[:: int(np.ceil(len(exponents) / 6))]
    several = np.outer(10.0 ** np.arange(first - 1, last + 1), [1, 2, 5]).ravel()
    several = several[(several >= low) & (several <= high)]
    return several if len(several) > 1 else _ticks(low, high)


def _tick_names(ticks: np.ndarray) -> list[str]:
    """Numbers of an axis, with the decimals of their distance; others as 2e-6."""
    if not len(ticks):
        return []
    largest = float(np.abs(ticks).max())
    exponent = int(np.floor(np.log10(largest) + 1e-9)) if largest else 0
    shift = 0 if -3 <= exponent <= 4 else exponent
    scaled = ticks / 10.0**shift
    step = float(np.diff(scaled).min()) if len(scaled) > 1 else 1.0
    decimals = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    end = f"e{shift}" if shift else ""
    names = (f"{value + 0.0:.{decimals}f}{end}" if value else "0" for value in scaled)
    return [name.replace("-", "\N{MINUS SIGN}") for name in names]


def _power(value: float) -> str:
    """A tick of a logarithmic axis: plain from 0.01 to 9999, else a power of ten."""
    exponent = round(float(np.log10(value)))
    if -2 <= exponent <= 3 or not np.isclose(value, 10.0**exponent, atol=0.0):
        return f"{value:g}"
    return f"10{superscript(exponent)}"
