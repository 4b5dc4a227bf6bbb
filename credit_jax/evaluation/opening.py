"""Opens forecasts and their references, and checks first that nothing is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from credit_jax.config.data import DateRange, in_training
from credit_jax.data.named_data import NamedData
from credit_jax.evaluation.climatologies import open_climatology, training_climatology
from credit_jax.evaluation.comparison import (
    ScoreComparison,
    compare,
    in_units_of,
    levels_in,
)
from credit_jax.evaluation.forecast_files import ForecastFiles
from credit_jax.evaluation.grid_file import GridVariable, align
from credit_jax.evaluation.netcdf_forecasts import open_netcdf, start_folders
from credit_jax.evaluation.references import open_truth
from credit_jax.evaluation.scores import NONE_TRAINED
from credit_jax.evaluation.zarr_forecasts import open_zarr
from credit_jax.io.open_files import OpenFiles

NO_CLIMATOLOGY = "none"


@dataclass(frozen=True)
class ScoreOptions:
    """The references that forecasts are compared with.

    Attributes:
        truth: data, or a path: see `open_truth`.
        climatology: path of mean fields; "none" omits climatology; None takes means of
            the training period.
        training: the data of that period; None if unknown.
        variables: names of those that are compared; all by default.
        training_dates: date ranges that the weights were trained on; those of
            `training` if there are none.
        open_files: files that are open already.
    """

    truth: str | NamedData
    climatology: str | None = None
    training: NamedData | None = None
    variables: tuple[str, ...] = ()
    training_dates: tuple[DateRange, ...] = ()
    open_files: OpenFiles | None = None


def open_comparison(
    options: ScoreOptions,
    variables: Mapping[str, GridVariable],
    coordinates: tuple[np.ndarray, np.ndarray],
    times: np.ndarray,
) -> ScoreComparison:
    """Opens the references of some forecasts.

    Args:
        options: names the references.
        variables: variables of the forecasts, by name.
        coordinates: latitudes and longitudes of the forecasts.
        times: all start dates and valid times.

    Raises:
        FileNotFoundError, ValueError: a file, time, variable or level is missing, or
            grids or units differ.
    """
    files = options.open_files or OpenFiles()
    truth = open_truth(options.truth, times, files)
    comparison = compare(variables, coordinates, truth, options.variables)
    problems = truth.problems(times, [*comparison.in_truth])
    if problems:
        raise ValueError("; ".join(problems))
    comparison = replace(comparison, notes=(*comparison.notes, *truth.notes(times)))
    comparison = _with_training_dates(comparison, options, times)
    return _with_climatology(comparison, options, coordinates, files)


def _with_training_dates(
    comparison: ScoreComparison, options: ScoreOptions, times: np.ndarray
) -> ScoreComparison:
    """The comparison with what is known of the training period."""
    ranges = options.training_dates
    if not ranges and options.training is not None:
        ranges = options.training.data.ranges
    if not ranges:
        return comparison
    seen = in_training(times, ranges)
    if not seen:
        return replace(comparison, training_dates=NONE_TRAINED)
    return replace(comparison, training_dates=seen, notes=(*comparison.notes, seen))


def _with_climatology(
    comparison: ScoreComparison,
    options: ScoreOptions,
    coordinates: tuple[np.ndarray, np.ndarray],
    files: OpenFiles,
) -> ScoreComparison:
    if options.climatology == NO_CLIMATOLOGY:
        return comparison
    if options.climatology is None and options.training is None:
        note = (
            "no climatology is known, so that anomalies are not scored; give "
            "--climatology FILE"
        )
        return replace(comparison, notes=(*comparison.notes, note))
    if options.climatology is None:
        assert options.training is not None, "checked above"
        option = "the training data"
        climatology = training_climatology(
            options.training,
            lambda reference: levels_in(comparison.channels, reference, option),
            open_files=files,
        )
        selection = climatology.selection
    else:
        option = f"--climatology: {options.climatology}"
        climatology = open_climatology(options.climatology, files)
        selection = levels_in(comparison.channels, climatology, "--climatology")
    places = align(*coordinates, climatology.coordinates(), option)
    places = in_units_of(comparison.channels, climatology, places)
    return replace(
        comparison,
        climatology=climatology,
        in_climatology=selection,
        to_climatology=places,
    )


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
    place = Path(path)
    if (place / STORE).is_dir():
        return open_zarr(str(place / STORE), files)
    if place.is_dir():
        if folders := start_folders(place):
            return open_netcdf(place, folders, files)
        if not any((place / name).exists() for name in _ZARR):
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
