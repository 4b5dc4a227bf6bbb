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
                leads = _of_start(measure, reader, len(files.leads))
            start_sums = ScoreSums.of_start(start, leads)
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
    bands: tuple[Region, ...] = ()
    if latitude.ndim == 1:
        steps = np.diff(longitude, append=longitude[0] + 360) % 360
        bands = BANDS if np.allclose(steps, 360 / longitude.size, atol=1e-2) else ()
    return ScoreGrid(latitude, longitude, regions, bands)


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
    measure: MeshSums, reader: ReadAhead, num_leads: int
) -> list[dict[str, np.ndarray]]:
    """The sums of each lead time; one is computed while that before is copied."""
    copies, pending, by_lead = measure.num_starts, [], []
    for lead in range(num_leads):
        forecast, references = next(reader)
        # Every data-parallel rank gets the same copy.
        members = np.concatenate([forecast] * copies)
        fields = {name: np.concatenate([x] * copies) for name, x in references.items()}
        pending.append(measure(measure.place_forecast(members), measure.place(fields)))
        while len(pending) > (lead < num_leads - 1):
            sums = measure.to_host(pending.pop(0))
            by_lead.append({name: x[0] for name, x in sums.items()})
    return by_lead
