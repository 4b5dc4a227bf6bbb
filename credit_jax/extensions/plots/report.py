"""The report at the end of a run: a forecast, scores, the page of scores, maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
import xarray as xr

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.store import FOLDER as CHECKPOINTS
from credit_jax.config import ConfigError
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.scores import (
    PAGE_NAME,
    other_scores,
    score_table,
    seen_in_training,
    write_scores,
)
from credit_jax.extensions.plots.canvas import Chart, Line, png_of
from credit_jax.extensions.plots.held_out import HeldOut, plan_held_out
from credit_jax.extensions.plots.page import write_page
from credit_jax.extensions.plots.scene import Scene, choose, truth_of
from credit_jax.extensions.plots.score_charts import LOOKS
from credit_jax.io.activity import activity
from credit_jax.io.atomic import move_aside, new_file
from credit_jax.training.display import Display, print_table
from credit_jax.training.loggers import LOG_NAME, read_log
from credit_jax.training.loop import Outcome
from credit_jax.training.setup import Setup
from credit_jax.training.state import TrainState

FORECAST_FOLDER, SCORES_FOLDER = "forecast", "scores"
FIGURE_NAME = "forecast.png"
MAX_MAPS = 3
# Columns of the training log, and their names.
_LOSS_NAMES = {"train_loss": "training", "valid_loss": "validation"}


@activity("forecasts and scores of held-out days")
def report_scores(
    setup: Setup, folder: Path, outcome: Outcome, display: Display
) -> None:
    """Makes and scores forecasts from held-out start dates with the best weights."""
    try:
        held_out = plan_held_out(setup)
        state = best_state(setup, folder, outcome.state)
        scores = held_out.score(state, folder / FORECAST_FOLDER)
    except (ConfigError, ValueError, OSError) as error:
        display.message(f"No scores: {error}")
        return
    if jax.process_index() > 0:
        return
    if other_scores(folder / SCORES_FOLDER, scores.attrs):
        earlier = move_aside(folder / SCORES_FOLDER)
        display.message(f"note: the scores of before are now in {earlier}")
    write_scores(scores, folder / SCORES_FOLDER)
    if seen := seen_in_training(scores):
        display.message(f"note: scores: {seen}")
    if held_out.left_out:
        display.message(f"note: {held_out.left_out}")
    names = [variable.name for variable in held_out.outputs.variables]
    maps = _maps(held_out, folder, scored(names, scores))
    log, losses = folder / LOG_NAME, None
    if log.exists() and (rows := read_log(log)):
        losses = loss_chart(rows)
    page = folder / SCORES_FOLDER / PAGE_NAME
    title = f"Scores of {folder.name}"
    write_page(scores, page, title=title, maps=maps, losses=losses)
    print_table(score_table(scores), display.console)
    display.message(f"Scores: {page}")
    display.message(
        f"Forecast: {folder / FORECAST_FOLDER}, map: {folder / FIGURE_NAME}"
    )
    # A `CheckpointStore` must be opened by all processes; this is only the first.
    checkpoints = folder.resolve() / CHECKPOINTS
    display.message(f"Checkpoints: {checkpoints}, log: {log}")


def best_state(setup: Setup, folder: Path, state: TrainState) -> TrainState:
    """The state with the weights of the best checkpoint, if another one is better."""
    store = CheckpointStore(folder)
    best = store.best_step()
    if best is not None and best != int(state.micro_step):
        runs = setup.store_in(store)
        state = runs.restore(best, state, optimizer=False, position=False)
    store.close()
    return state


def scored(names: Sequence[str], scores: xr.Dataset) -> list[str]:
    """The variables of a forecast that the data have, in the order of the forecast."""
    scored_names = set(scores["variable"].values.tolist())
    return [name for name in names if name in scored_names]


@activity("drawing maps")
def _maps(
    held_out: HeldOut, folder: Path, names: Sequence[str]
) -> list[tuple[str, bytes]]:
    """Captions and maps of some variables at the last lead time; writes the first."""
    open_files = held_out.setup.plan.open_files
    files = open_forecasts(str(folder / FORECAST_FOLDER), open_files)
    last, images = len(files.leads) - 1, []
    training = held_out.setup.plan.config.data.ranges
    # The first, a middle and the last one; a forecast of one step needs only one map.
    count = min(len(names), MAX_MAPS if last else 1)
    for index in np.linspace(0, len(names) - 1, count).round():
        name = names[int(index)]
        levels = files.grid.variables[name].levels
        middle = None if levels is None else float(levels[(len(levels) - 1) // 2])
        choice = choose(files, name, level=middle, training=training)
        scene = Scene(choice, truth_of(choice, held_out.plan.truth, [last], open_files))
        images.append((choice.title(last), png_of(scene.figure(last).figure)))
    with new_file(folder / FIGURE_NAME) as partial:
        partial.write_bytes(images[0][1])
    return images


def loss_chart(rows: Sequence[Mapping[str, float]]) -> Chart:
    """Returns the chart of the losses in the rows of a training log."""
    lines = []
    for (column, name), look in zip(_LOSS_NAMES.items(), LOOKS.values(), strict=False):
        points = [(row["epoch"] + 1, row[column]) for row in rows if column in row]
        if points:
            epochs, losses = np.array(points, float).T
            lines.append(Line(name, epochs, losses, look, has_markers=True))
    return Chart(
        "loss by epoch",
        "epoch",
        lines,
        y_is_log=True,
        has_integer_x=True,
        has_legend=True,
    )
