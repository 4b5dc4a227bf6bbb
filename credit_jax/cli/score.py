"""Scores of forecasts: `python -m credit_jax.score --forecast DIR --out REPORT`.

Reads a Zarr store or CREDIT's NetCDF folders, compares with the truth, persistence and
climatology, and writes scores.nc and scores.csv (`evaluation.scores`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from credit_jax.cli.commands import FAILED, OK, CommandError, print_line, run_module
from credit_jax.config import Config, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.inference import InferenceConfig
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_times
from credit_jax.evaluation.offline import dims_of_scores, grid_of, score_files
from credit_jax.evaluation.opening import (
    ScoreOptions,
    in_order,
    open_comparison,
    open_forecasts,
)
from credit_jax.evaluation.regions import choose_regions
from credit_jax.evaluation.scores import other_scores, score_table, write_scores
from credit_jax.forecast.archive import ForecastRecord, record_beside
from credit_jax.io.errors import WriteError, writable_folder, write_errors
from credit_jax.io.tables import print_table
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.plan.forecast import forecast_truth
from credit_jax.visualization.page import PAGE_NAME, write_page

HELP = "Score forecasts against the truth, beside persistence and climatology."
EXAMPLE = "--forecast forecasts/2001-06-01 --out report --regions tropics,europe"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.score`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.score")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `score`."""
    add = parser.add_argument
    add(
        "--forecast",
        required=True,
        metavar="DIR",
        help="folder of `credit-jax forecast` or of CREDIT, or a Zarr store",
    )
    add("--out", required=True, metavar="DIR", help="folder of the scores")
    add_score_options(parser)
    add("--members", type=int, help="take the first members alone")
    add("--cache", metavar="DIR", help=CACHE_HELP)


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `score` and `forecast --score` have in common."""
    add = parser.add_argument
    add(
        "--truth",
        metavar="FILE",
        help="a YAML file with a data section, a NetCDF file or a Zarr store (default: "
        "the data section of the forecast's config)",
    )
    add(
        "--climatology",
        metavar="FILE",
        help="mean fields by hour and dayofyear, by month, or alone; none leaves it out"
        " (default: means of the training period of the forecast's config)",
    )
    for name, what in (("regions", "WeatherBench's regions"), ("variables", "names")):
        add(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME,...",
            help=f"{what} (default: all); repeatable",
        )


def run(args: argparse.Namespace) -> int:
    """Computes the scores and writes them.

    Raises:
        ValueError, OSError: the scores cannot be computed.
    """
    compile_sooner()
    use_cache(args.cache)
    regions = choose_regions(in_order(args.regions))
    files = open_forecasts(args.forecast)
    record = record_beside(files.where)
    if record.unfinished:
        raise ValueError(
            f"--forecast: {record.unfinished} of {record.total} forecasts in "
            f"{args.forecast} are not finished; make them with forecast --resume"
        )
    members = _members(args.members, files.num_members)
    if not files.leads.size:
        raise ValueError(f"--forecast: {args.forecast} has no lead time above 0")
    config = _config(record, files)
    options = score_options(args, config, record.training_dates)
    comparison = open_comparison(options, files.grid.table, valid_times(files))
    for note in comparison.notes:
        print_line(f"note: {note}", "yellow")
    attributes = attributes_of(files.where, comparison, record.provenance)
    refuse_other_scores(args.out, "--out", attributes)
    with writable_folder(args.out, "--out") as out:
        grid = grid_of(files.grid.latitude, files.grid.longitude, regions)
        count = len(files.starts)
        sums = score_files(
            files,
            comparison,
            grid,
            num_members=members,
            progress=lambda done: print_line(f"{done} of {count} start dates"),
        )
        dims = dims_of_scores(comparison, grid, files.leads, members)
        report(dims.scores(sums, attributes), out)
    return OK


def score_options(
    args: argparse.Namespace,
    config: Config | None,
    training_dates: Sequence[Sequence[str]] = (),
) -> ScoreOptions:
    """The options of the command line.

    Args:
        args: parsed arguments with those of `add_score_options`.
        config: config of the forecasts, or None.
        training_dates: date ranges of the training of the weights; () if unknown.

    Raises:
        ValueError: there is no truth.
    """
    truth: str | NamedData | None = args.truth
    training = None
    if config is not None:
        if config.data.has_period:
            training = NamedData.before(config.preblocks, config.data)
        inference = config.inference or InferenceConfig()
        truth = truth or forecast_truth(config, inference)
    if truth is None:
        raise ValueError(
            "--truth is needed: the forecasts do not say with which config they were "
            "made"
        )
    dates = tuple((first, last) for first, last in training_dates)
    variables = in_order(args.variables)
    return ScoreOptions(truth, args.climatology, training, variables, dates)


def refuse_other_scores(
    folder: str, option: str, attributes: Mapping[str, Any]
) -> None:
    """Checks that scores would replace none but earlier ones of the same forecasts.

    Raises:
        FileExistsError: they would.
    """
    place = Path(os.path.expandvars(folder)).expanduser()
    if others := other_scores(place, attributes):
        raise FileExistsError(
            f"{option}: {place} holds other scores ({others}); give another folder"
        )


def report(scores: Any, folder: str | Path) -> None:
    """Writes scores and their page, and prints the table.

    Raises:
        CommandError: with exit code 1 if writing fails.
    """
    try:
        with write_errors(Path(folder)):
            paths = write_scores(scores, folder)
            page = write_page(scores, Path(folder) / PAGE_NAME)
    except WriteError as error:
        raise CommandError(str(error), FAILED) from error
    print_table(score_table(scores))
    print_line(f"scores: {page}, {paths[0]}, {paths[1]}")


def _config(record: ForecastRecord, files: ForecastFiles) -> Config | None:
    """The config that the forecasts were made with, if it is recorded."""
    raw = record.config
    if raw is None and "config" in files.grid.dataset.attrs:
        raw = json.loads(files.grid.dataset.attrs["config"])
    if raw is None:
        return None
    # Keys without effect were noted when the forecasts were made.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        source = "the config of the forecast"
        config = build_config(dict(raw), source=source, training=False)
        _ = config.inference
    return config


def _members(requested: int | None, available: int) -> int:
    if requested is not None and not 1 <= requested <= available:
        raise ValueError(
            f"--members must be from 1 to {available}, the members of the forecasts; "
            f"got {requested}"
        )
    return requested or available


if __name__ == "__main__":
    sys.exit(main())
