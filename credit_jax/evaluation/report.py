"""What a user gets at the end: the table of errors and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from credit_jax.config.atomic import new_file
from credit_jax.data import ChannelSchema
from credit_jax.evaluation.skill import BASELINES, Example, Skill

FIGURE_NAME = "forecast.png"
MAX_VARIABLES = 3


def skill_table(skill: Skill, lead: str) -> Table:
    """RMSE of forecast, persistence and climatology by variable.

    Args:
        skill: of `measure_skill`.
        lead: time step of the forecast, such as "24h".
    """
    title = (
        f"RMSE of the {lead} forecast, {skill.num_samples} held-out samples: "
        "normalized | physical"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("variable")
    for name in BASELINES:
        table.add_column(name, justify="right")
    table.add_column("wins")
    for place, key in enumerate(skill.variables):
        cells = [
            f"{skill.normalized[name][place]:.3f} | {skill.physical[name][place]:.3g}"
            for name in BASELINES
        ]
        verdict = "[green]yes[/]" if skill.wins(place) else "[red]no[/]"
        table.add_row(key.rsplit("/", 1)[-1], *cells, verdict)
    return table


def write_figure(
    path: str | Path,
    skill: Skill,
    rows: Sequence[Mapping[str, float]],
    schema: ChannelSchema,
    latitude: np.ndarray,
    longitude: np.ndarray,
) -> Path:
    """Maps of truth, forecast and error of some variables, and the loss curve.

    Args:
        path: the picture to write.
        skill: its example is drawn.
        rows: of the training log.
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
    grid = figure.add_gridspec(len(channels) + 1, 3)
    axes = [
        [figure.add_subplot(grid[line, column]) for column in range(3)]
        for line in range(len(channels))
    ]
    edges = (longitude, latitude)
    for line, (channel, name) in zip(axes, channels, strict=True):
        _draw_maps(figure, line, skill.example, channel, name, edges)
    _draw_losses(figure.add_subplot(grid[len(channels), :]), rows)
    figure.suptitle(f"Forecast for {str(skill.example.time)[:16]}")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=110)
    return Path(path)


def _chosen_channels(schema: ChannelSchema) -> list[tuple[int, str]]:
    """One channel each of the first, a middle and the last prognostic variable."""
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
    edges: tuple[np.ndarray, np.ndarray],
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
    for axis, (what, field, smallest, biggest, colors) in zip(axes, maps, strict=True):
        image = axis.pcolormesh(
            *edges, field, vmin=smallest, vmax=biggest, cmap=colors, shading="nearest"
        )
        figure.colorbar(image, ax=axis)
        axis.set_title(f"{name}: {what}")


def _draw_losses(axis: Any, rows: Sequence[Mapping[str, float]]) -> None:
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
