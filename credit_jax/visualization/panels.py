"""Panels: drawings on one pair of axes, for a figure of several or for a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from credit_jax.visualization.canvas import new_figure, style, svg_of


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
