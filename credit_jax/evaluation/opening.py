"""Scores of forecasts in files, and what opens and checks these first.

Memory holds all members of one forecast at a few lead times, the truth at each, and the
truth at the start date.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from credit_jax.config.data import DateRange, in_training
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation import forecast_files
from credit_jax.evaluation.comparison import ScoreComparison, compare
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.mesh_sums import MeshSums, ScoreGrid
from credit_jax.evaluation.references import (
    open_climatology,
    open_truth,
    training_climatology,
)
from credit_jax.evaluation.regions import BANDS, Region
from credit_jax.evaluation.scores import NONE_TRAINED
from credit_jax.evaluation.sums import (
    ScoreDims,
    ScoreSums,
    merged_sums,
    path_of_sums,
)
from credit_jax.io.activity import activity
from credit_jax.io.open_files import OpenFiles, opened
from credit_jax.io.workers import ReadAhead
from credit_jax.named_fields.variables import Variables
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.placement import place_batch

NO_CLIMATOLOGY = "none"


@dataclass(frozen=True)
class ScoreOptions:
    """The references that forecasts are compared with."""

    truth: str | NamedData  # data, or a path: see `open_truth`
    climatology: str | None = None  # a path, or "none"; None: means of `training`
    training: NamedData | None = None
    variables: tuple[str, ...] = ()  # all by default
    training_dates: tuple[DateRange, ...] = ()  # of the weights
    open_files: OpenFiles | None = None


def open_comparison(
    options: ScoreOptions, forecast: Variables, times: np.ndarray
) -> ScoreComparison:
    """Opens the references of some forecasts."""
    files = options.open_files or OpenFiles()
    truth = open_truth(options.truth, times, files)
    comparison = compare(forecast, truth, options.variables)
    problems = truth.problems(times, [*comparison.scored.table])
    if problems:
        raise ValueError("; ".join(problems))
    notes = [*comparison.notes, *truth.notes(times)]
    ranges = options.training_dates
    if not ranges and options.training is not None:
        ranges = options.training.data.ranges
    seen = in_training(times, ranges) if ranges else ""
    notes += [seen] if seen else []
    dates = seen or (NONE_TRAINED if ranges else comparison.training_dates)
    if options.climatology is None and options.training is None:
        notes.append(
            "no climatology is known, so that anomalies are not scored; give "
            "--climatology FILE"
        )
    comparison = replace(comparison, notes=tuple(notes), training_dates=dates)
    if options.climatology is not None and options.climatology != NO_CLIMATOLOGY:
        climatology = open_climatology(options.climatology, files)
    elif options.climatology is None and options.training is not None:
        climatology = training_climatology(
            options.training,
            lambda reference: (
                comparison.scored.align(reference.table, complete=True).other_levels
            ),
            files,
        )
    else:
        return comparison
    indices = comparison.scored.align(climatology.table, complete=True)
    return replace(comparison, climatology=climatology, to_climatology=indices)


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Names of an option that may be repeated and may contain commas.

    >>> in_order(["T,U", "SP"])
    ('T', 'U', 'SP')
    """
    parts = [part.strip() for name in names for part in name.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


STORE = "forecast.zarr"
_ZARR = ("zarr.json", ".zgroup", ".zmetadata")


def open_forecasts(path: str, open_files: OpenFiles | None = None) -> ForecastFiles:
    """Opens forecasts without reading fields."""
    files = open_files or OpenFiles()
    folder = Path(path)
    if (folder / STORE).is_dir():
        return forecast_files.open_zarr(str(folder / STORE), files)
    if folder.is_dir():
        if folders := forecast_files.start_folders(folder):
            return forecast_files.open_netcdf(folder, folders, files)
        if not any((folder / name).exists() for name in _ZARR):
            raise ValueError(
                f"--forecast: {path} holds no forecasts: neither {STORE} nor folders "
                "of start dates such as 20010601_0000Z, and it is no Zarr store"
            )
    return forecast_files.open_zarr(path, files)


# Tables of observations.
TABLES = (".csv", ".psv", ".parquet")


def observation_files(truth: str | None) -> list[str]:
    """The files of observations that a table, NetCDF file or folder names, or none."""
    if truth is None or "://" in truth:
        return []
    path = Path(os.path.expandvars(truth)).expanduser()
    if path.is_dir():
        if any((path / name).exists() for name in _ZARR):
            return []
        suffixes = (*TABLES, ".nc")
        named = [file for file in path.rglob("*") if file.suffix.lower() in suffixes]
        return [str(file) for file in sorted(named) if observation_files(str(file))]
    if path.suffix.lower() == ".nc" and path.is_file():
        with opened(path) as dataset:
            names = {"value", "variable"} <= {*map(str, dataset.variables)}
            return [str(path)] if names and len(dataset.sizes) == 1 else []
    return [str(path)] if path.suffix.lower() in TABLES else []


def holds_forecasts(folder: Path) -> bool:
    """Whether a folder holds a store of forecasts, or CREDIT's folders."""
    if not folder.is_dir():
        return False
    return (folder / STORE).exists() or bool(forecast_files.start_folders(folder))


# Lead times that are read in advance.
NUM_AHEAD = 2


def score_files(
    files: ForecastFiles,
    comparison: ScoreComparison,
    grid: ScoreGrid,
    mesh: Mesh | None = None,
    num_members: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    # (number, count): every count-th start date, from the number-th on.
    shard: tuple[int, int] = (1, 1),
    # For the sums of each start date, computed once and merged for all shards.
    folder: Path | None = None,
) -> ScoreSums | None:
    """Computes the sums of the forecasts of a store or folder."""
    members = num_members or files.num_members
    mesh = ParallelDims().build_mesh(jax.devices()[:1]) if mesh is None else mesh
    size = members * MeshSums(mesh, grid, members, members).axes.num_data
    measure = MeshSums(mesh, grid, size, members)
    starts = [
        number
        for number in range(shard[0] - 1, len(files.starts), shard[1])
        if folder is None or not path_of_sums(folder, files.starts[number]).exists()
    ]
    reader = ReadAhead(_read(files, starts, comparison, members), NUM_AHEAD)
    total: ScoreSums | None = None
    try:
        for done, number in enumerate(starts):
            with activity(f"scoring start date {done + 1}/{len(starts)}"):
                num_leads = len(files.leads)
                copies, pending, leads = measure.num_starts, [], []
                for lead in range(num_leads):
                    forecast, references = next(reader)
                    # Every data-parallel rank gets the same copy.
                    copied = np.concatenate([forecast] * copies)
                    fields = {
                        name: np.concatenate([x] * copies)
                        for name, x in references.items()
                    }
                    placed = place_batch({"all": copied[:, :, None]}, measure.mesh)
                    pending.append(measure(placed, measure.place(fields)))
                    while len(pending) > (lead < num_leads - 1):
                        sums = measure.to_host(pending.pop(0))
                        leads.append({name: x[0] for name, x in sums.items()})
            start_sums = ScoreSums.of_start(files.starts[number], leads)
            if folder is not None:
                start_sums.save(path_of_sums(folder, files.starts[number]))
            else:
                total = start_sums if total is None else total.merge(start_sums)
            progress(done + 1)
    finally:
        reader.close()
    return total if folder is None else merged_sums(folder, files.starts)


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
    files: ForecastFiles,
    starts: Sequence[int],
    comparison: ScoreComparison,
    num_members: int,
) -> Iterator[Any]:
    """Yields the forecast and its references for start dates and lead times."""
    for number in starts:
        persistence = comparison.persistence(files.starts[number])
        for lead in range(len(files.leads)):
            forecast = files.read(number, lead, comparison.to_truth.levels)
            references = comparison.at(valid_time(files, number, lead)) | persistence
            forecast = forecast[:num_members]
            yield forecast, {name: x[None] for name, x in references.items()}
