"""Scores of forecasts in files, in bounded memory.

Memory holds all members of one forecast at a few lead times, the truth at each, and the
truth at the start date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from credit_jax.evaluation.comparison import ScoreComparison
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.mesh_sums import MeshSums, ScoreGrid
from credit_jax.evaluation.regions import BANDS, Region
from credit_jax.evaluation.sums import ScoreDims, ScoreSums
from credit_jax.io.activity import activity
from credit_jax.io.workers import ReadAhead
from credit_jax.parallel.mesh.dims import ParallelDims

# Lead times that are read in advance.
NUM_AHEAD = 2


def score_files(
    files: ForecastFiles,
    comparison: ScoreComparison,
    grid: ScoreGrid,
    mesh: Mesh | None = None,
    num_members: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> ScoreSums:
    """Computes the sums of all forecasts of a store or folder.

    Args:
        files: the forecasts.
        comparison: channels and references.
        grid: grid of the forecasts.
        mesh: rows are split over its domain axis; by default one device.
        num_members: number of first members to score; by default all.
        progress: called with the number of start dates that are done.
    """
    members = num_members or files.num_members
    mesh = ParallelDims().build_mesh(jax.devices()[:1]) if mesh is None else mesh
    size = members * MeshSums(mesh, grid, members, members).axes.num_data
    measure = MeshSums(mesh, grid, size, members)
    reader = ReadAhead(_read(files, comparison, members), NUM_AHEAD)
    total: ScoreSums | None = None
    try:
        for number, start in enumerate(files.starts):
            with activity(f"scoring start date {number + 1}/{len(files.starts)}"):
                start_sums = _of_start(measure, reader, start, len(files.leads))
            total = start_sums if total is None else total.merge(start_sums)
            progress(number + 1)
    finally:
        reader.close()
    assert total is not None, "there is at least one start date"
    return total


def dims_of_scores(
    comparison: ScoreComparison, grid: ScoreGrid, leads: np.ndarray, num_members: int
) -> ScoreDims:
    """Returns the dims of the scores."""
    names = [tuple(item.name for item in part) for part in (grid.regions, grid.bands)]
    return ScoreDims(comparison.channels, leads, *names, num_members=num_members)


def grid_of(
    latitude: np.ndarray, longitude: np.ndarray, regions: tuple[Region, ...]
) -> ScoreGrid:
    """Returns the grid of forecasts; spectra need whole circles of latitude."""
    circles = latitude.ndim == 1 and _is_circle(longitude)
    return ScoreGrid(latitude, longitude, regions, BANDS if circles else ())


def _is_circle(longitude: np.ndarray) -> bool:
    steps = np.diff(longitude, append=longitude[0] + 360) % 360
    return bool(np.allclose(steps, 360 / longitude.size, atol=1e-2))


def _read(
    files: ForecastFiles, comparison: ScoreComparison, num_members: int
) -> Iterator[Any]:
    """Yields the forecast and its references for each start date and lead time."""
    for number, start in enumerate(files.starts):
        persistence = comparison.persistence(start)
        for lead in range(len(files.leads)):
            forecast = files.read(number, lead, comparison.to_truth.levels)
            references = comparison.at(valid_time(files, number, lead)) | persistence
            forecast = forecast[:num_members]
            yield forecast, {name: x[None] for name, x in references.items()}


def _of_start(
    measure: MeshSums, reader: ReadAhead, start: np.datetime64, num_leads: int
) -> ScoreSums:
    by_lead, copies = [], measure.num_starts
    for _ in range(num_leads):
        forecast, references = next(reader)
        # Every data-parallel rank gets the same copy.
        whole = np.concatenate([forecast] * copies)
        fields = {name: np.concatenate([x] * copies) for name, x in references.items()}
        sums = measure(measure.place_forecast(whole), measure.place(fields))
        by_lead.append(sums)
        if len(by_lead) > 1:
            by_lead[-2] = _first(measure, by_lead[-2])
    by_lead[-1] = _first(measure, by_lead[-1])
    return ScoreSums.of_start(start, by_lead)


def _first(measure: MeshSums, sums: Any) -> dict[str, np.ndarray]:
    return {name: x[0] for name, x in measure.to_host(sums).items()}
