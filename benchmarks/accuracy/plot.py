"""Plots errors by step of training and of the rollout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.accuracy.errors import TOLERANCES, Errors
from benchmarks.accuracy.report import Line

# Errors of zero are drawn here on the log scale.
_ZERO = 1e-9


def plot(lines: Sequence[Line], path: Path) -> None:
    """One row of panels a model: loss by training step, state by rollout step.

    Args:
        lines: solid for credit_jax, dashed for CREDIT's own differences, with dots in
            bfloat16; one that did not run is left out.
        path: PNG to write.
    """
    models = list(dict.fromkeys(line.model for line in lines))
    figure = Figure(figsize=(14, 4.2 * len(models)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(models), 2, squeeze=False)
    for model, (training, rollout) in zip(models, panels, strict=True):
        some = [line for line in lines if line.model == model]
        _panel(training, some, "loss", f"{model}: training loss", "training step")
        _panel(rollout, some, "rollout", f"{model}: rollout", "rollout step")
        rollout.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _panel(axes: Any, lines: Sequence[Line], kind: str, title: str, step: str) -> None:
    for index, line in enumerate(lines):
        if isinstance(line.errors, Errors):
            values = np.maximum(getattr(line.errors, kind), _ZERO)
            axes.plot(
                np.arange(1, len(values) + 1),
                values,
                color=f"C{index % 10}",
                linestyle="-" if line.ours else "--",
                marker="." if line.dtype == "bfloat16" else None,
                linewidth=1.2,
                label=line.name,
            )
    axes.axhline(TOLERANCES[kind], color="black", linestyle=":", linewidth=0.8)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title)
    axes.set_xlabel(step)
    axes.set_ylabel(f"relative L2 error (0 at {_ZERO:.0e}; dots: tolerance)")
