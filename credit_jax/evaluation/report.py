"""The evaluation at the end of a run: a table of errors and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from credit_jax.data import Climatology, Loader
from credit_jax.evaluation.figures import Row, write_figure
from credit_jax.evaluation.skill import (
    BASELINES,
    FORECAST,
    Forecaster,
    Skill,
    measure_skill,
)


@dataclass(frozen=True)
class Report:
    """The result of `evaluate`.

    Attributes:
        skill: errors of the forecast and of the baselines.
        table: these errors by variable, to print.
        figure: path of the figure, or None.
    """

    skill: Skill
    table: Table
    figure: Path | None


def evaluate(
    forecaster: Forecaster,
    loader: Loader,
    climatology: Climatology,
    *,
    batch_size: int,
    lead: str,
    figure: str | Path | None = None,
    rows: Sequence[Row] = (),
) -> Report:
    """Compares forecasts of held-out samples with the baselines.

    Args:
        forecaster: model input of `batch_size` samples -> prediction, normalized.
        loader: of the held-out period.
        climatology: of the training period.
        batch_size: number of samples in a call of `forecaster`.
        lead: time step of the forecast, such as "24h".
        figure: path of a figure to write, or None.
        rows: of the training log, for the loss curve of the figure.
    """
    skill = measure_skill(forecaster, loader, climatology, batch_size=batch_size)
    written = None
    if figure is not None:
        grid = loader.latitude, loader.longitude
        written = write_figure(figure, skill, rows, loader.schema, *grid)
    return Report(skill, skill_table(skill, lead), written)


def skill_table(skill: Skill, lead: str) -> Table:
    """RMSE of the forecast and of the baselines, by variable.

    Args:
        skill: of `measure_skill`.
        lead: time step of the forecast, such as "24h".
    """
    title = (
        f"RMSE of the {lead} forecast, {skill.num_samples} held-out samples: "
        "normalized | physical"
    )
    table = Table(title=title, title_justify="left")
    columns = (FORECAST, *BASELINES)
    table.add_column("variable")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("wins")
    for place, key in enumerate(skill.variables):
        cells = [
            f"{skill.normalized[name][place]:.3f} | {skill.physical[name][place]:.3g}"
            for name in columns
        ]
        verdict = "[green]yes[/]" if skill.wins(place) else "[red]no[/]"
        table.add_row(key.rsplit("/", 1)[-1], *cells, verdict)
    return table
