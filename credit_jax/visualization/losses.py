"""The losses of a training by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from credit_jax.visualization.charts import Chart, Line
from credit_jax.visualization.curves import LOOKS

# Columns of the training log, and their names.
_NAMES = {"train_loss": "training", "valid_loss": "validation"}


def loss_chart(rows: Sequence[Mapping[str, float]]) -> Chart:
    """Returns the chart of the losses of the training log.

    Args:
        rows: rows of the log, with "epoch", "train_loss" and "valid_loss".
    """
    lines = []
    for (column, name), look in zip(_NAMES.items(), LOOKS.values(), strict=False):
        points = [(row["epoch"] + 1, row[column]) for row in rows if column in row]
        if points:
            epochs, losses = np.array(points, float).T
            lines.append(Line(name, epochs, losses, look, has_markers=True))
    looks = {"y_is_log": True, "x_is_whole": True, "has_legend": True}
    return Chart("loss by epoch", "epoch", lines, **looks)
