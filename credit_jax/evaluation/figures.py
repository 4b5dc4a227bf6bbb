"""Maps of one forecast, and the loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.data import ChannelSchema
from credit_jax.evaluation.skill import Example, Skill
from credit_jax.io.atomic import new_file

Row = Mapping[str, float]

MAX_VARIABLES = 3


def write_figure(
    path: str | Path,
    skill: Skill,
    rows: Sequence[Row],
    schema: ChannelSchema,
    latitude: np.ndarray,
    longitude: np.ndarray,
) -> Path:
    """Maps of truth, forecast and error of some variables, and the loss curve.

    Args:
        path: of the PNG file to write.
        skill: its example is drawn.
        rows: of the training log, with "epoch", "train_loss" and "valid_loss".
        schema: names the channels.
        latitude: (H,) degrees north.
        longitude: (W,) degrees east.

    Returns:
        The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    channels = _chosen_channels(schema)
    figure = Figure(figsize=(13, 2.6 * (len(channels) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.add_gridspec(len(channels) + 1, 3)
    for line, (channel, name) in enumerate(channels):
        axes = [figure.add_subplot(cells[line, column]) for column in range(3)]
        _draw_maps(figure, axes, skill.example, channel, name, (longitude, latitude))
    _draw_losses(figure.add_subplot(cells[len(channels), :]), rows)
    figure.suptitle(f"Forecast for {str(skill.example.time)[:16]}")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=110)
    return Path(path)


def _chosen_channels(schema: ChannelSchema) -> list[tuple[int, str]]:
    """One channel each of the first, a middle and the last target variable."""
    slices = list(schema.target_slices().items())
    places = np.linspace(0, len(slices) - 1, min(len(slices), MAX_VARIABLES))
    chosen = [slices[i][1] for i in places.round().astype(int)]
    channels = [(place.start + place.stop - 1) // 2 for place in chosen]
    return [(channel, schema.describe(channel)) for channel in channels]


def _draw_maps(
    figure: Any,
    axes: Sequence[Any],
    example: Example,
    channel: int,
    name: str,
    grid: tuple[np.ndarray, np.ndarray],
) -> None:
    truth, forecast = example.truth[channel], example.forecast[channel]
    low, high = float(truth.min()), float(truth.max())
    error = forecast - truth
    largest = float(np.abs(error).max()) or 1.0
    maps = [
        ("truth", truth, low, high, "viridis"),
        ("forecast", forecast, low, high, "viridis"),
        ("error", error, -largest, largest, "RdBu_r"),
    ]
    for axis, (what, field, vmin, vmax, colors) in zip(axes, maps, strict=True):
        image = axis.pcolormesh(
            *grid, field, vmin=vmin, vmax=vmax, cmap=colors, shading="nearest"
        )
        figure.colorbar(image, ax=axis)
        axis.set_title(f"{name}: {what}")


def _draw_losses(axis: Any, rows: Sequence[Row]) -> None:
    for name in ("train_loss", "valid_loss"):
        points = [(row["epoch"] + 1, row[name]) for row in rows if name in row]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_xlabel("epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_yscale("log")
    axis.set_title("loss")
    if rows:
        axis.legend()
