"""Opens forecasts and their references, and checks first that nothing is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from credit_jax.config.data import DateRange, in_training
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.climatologies import open_climatology, training_climatology
from credit_jax.evaluation.comparison import ScoreComparison, compare
from credit_jax.evaluation.forecast_files import (
    ForecastFiles,
    open_netcdf,
    open_zarr,
    start_folders,
)
from credit_jax.evaluation.references import open_truth
from credit_jax.evaluation.scores import NONE_TRAINED
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import Variables

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
    """Opens the references of some forecasts.

    Args:
        options: names the references.
        forecast: variables of the forecasts.
        times: all start dates and valid times.

    Raises:
        FileNotFoundError, ValueError: a file, time, variable or level is missing, or
            grids or units differ.
    """
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
            open_files=files,
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
    """Opens forecasts without reading fields.

    Args:
        path: a Zarr store, a folder with `forecast.zarr`, or CREDIT's folder.
        open_files: files that are open already.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: it contains no forecasts, or parts of them are missing.
    """
    files = open_files or OpenFiles()
    folder = Path(path)
    if (folder / STORE).is_dir():
        return open_zarr(str(folder / STORE), files)
    if folder.is_dir():
        if folders := start_folders(folder):
            return open_netcdf(folder, folders, files)
        if not any((folder / name).exists() for name in _ZARR):
            raise ValueError(
                f"--forecast: {path} holds no forecasts: neither {STORE} nor folders "
                "of start dates such as 20010601_0000Z, and it is no Zarr store"
            )
    return open_zarr(path, files)


def holds_forecasts(folder: Path) -> bool:
    """Whether a folder holds a store of forecasts, or CREDIT's folders."""
    if not folder.is_dir():
        return False
    return (folder / STORE).exists() or bool(start_folders(folder))
