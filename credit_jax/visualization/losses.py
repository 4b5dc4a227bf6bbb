"""The losses of a training by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from credit_jax.visualization.panels import Panel

NAMES = ("train_loss", "valid_loss")


def loss_panel(rows: Sequence[Mapping[str, float]]) -> Panel:
    """Returns a panel of the losses of the training log.

    Args:
        rows: of the log, with "epoch", "train_loss" and "valid_loss".
    """

    def draw(axis: Any) -> None:
        for name in NAMES:
            points = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_yscale("log")
        axis.grid(True)

    return Panel("loss", draw, 6.0, 2.8)
