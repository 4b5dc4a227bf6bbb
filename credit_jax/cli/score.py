"""Scores of forecasts: `python -m credit_jax.score --forecast DIR --out REPORT`.

Reads a Zarr store or CREDIT's NetCDF folders, compares with the truth, persistence and
climatology, and writes scores.nc and scores.csv (`evaluation.scores`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from credit_jax.cli.commands import (
    FAILED,
    OK,
    Command,
    CommandError,
    option,
    parse_shard,
    print_line,
)
from credit_jax.config import Config, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.components import extensions
from credit_jax.config.inference import InferenceConfig
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_times
from credit_jax.evaluation.opening import (
    ScoreOptions,
    dims_of_scores,
    grid_of,
    in_order,
    open_comparison,
    open_forecasts,
    score_files,
)
from credit_jax.evaluation.regions import choose_regions
from credit_jax.evaluation.scores import (
    PAGE_NAME,
    other_scores,
    score_table,
    write_scores,
)
from credit_jax.evaluation.sums import merged_sums
from credit_jax.forecast.archive import ForecastRecord, record_beside
from credit_jax.io.errors import WriteError, writable_folder, write_errors
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.plan.forecast import forecast_truth
from credit_jax.training.display import print_table


class ComparisonOptions(Command):
    """What forecasts are compared with."""

    truth: str | None = option(
        "a YAML file with a data section, a NetCDF file or a Zarr store (default: the "
        "data section of the forecast's config)",
        None,
        "DATA",
    )
    climatology: str | None = option(
        "mean fields by hour and dayofyear, by month, or alone; none leaves it out "
        "(default: means of the training period of the forecast's config)",
        None,
        "DATA",
    )
    regions: tuple[str, ...] = option(
        "WeatherBench's regions (default: all); repeatable", (), "NAME,..."
    )
    variables: tuple[str, ...] = option(
        "names (default: all); repeatable", (), "NAME,..."
    )

    def score_options(
        self, config: Config | None, training_dates: Sequence[Sequence[str]] = ()
    ) -> ScoreOptions:
        """The options of a comparison."""
        truth: str | NamedData | None = self.truth
        training = None
        if config is not None:
            if config.data.date_ranges is not None or (
                config.data.start_datetime != config.data.end_datetime
            ):
                training = NamedData.before(config.preblocks, config.data)
            inference = config.inference or InferenceConfig()
            truth = truth or forecast_truth(config, inference)
        if truth is None:
            raise ValueError(
                "--truth is needed: the forecasts do not say with which config they "
                "were made"
            )
        dates = tuple((first, last) for first, last in training_dates)
        variables = in_order(self.variables)
        return ScoreOptions(truth, self.climatology, training, variables, dates)


class Score(ComparisonOptions):
    """Score forecasts against the truth, beside persistence and climatology."""

    example = "--forecast forecasts/2001-06-01 --out report --regions tropics,europe"

    forecast: str = option(
        "folder of `credit-jax forecast` or of CREDIT, or a Zarr store", metavar="DIR"
    )
    out: str = option("folder of the scores", metavar="DIR")
    members: int | None = option("take the first members alone", None)
    shard: str = option(
        "score the I-th of N parts of the start dates, for job arrays; the scores are "
        "those of all parts so far",
        "1/1",
        "I/N",
    )
    cache: str | None = option(CACHE_HELP, None, "DIR")

    def run(self) -> int:
        """Computes the scores and writes them."""
        compile_sooner()
        use_cache(self.cache)
        regions = choose_regions(in_order(self.regions))
        files = open_forecasts(self.forecast)
        record = record_beside(files.where)
        if record.unfinished:
            raise ValueError(
                f"--forecast: {record.unfinished} of {record.total} forecasts in "
                f"{self.forecast} are not finished; make them with forecast --resume"
            )
        available = files.num_members
        if self.members is not None and not 1 <= self.members <= available:
            raise ValueError(
                f"--members must be from 1 to {available}, the members of the "
                f"forecasts; got {self.members}"
            )
        members = self.members or available
        if not files.leads.size:
            raise ValueError(f"--forecast: {self.forecast} has no lead time above 0")
        config = _config(record, files)
        options = self.score_options(config, record.training_dates)
        comparison = open_comparison(options, files.grid.table, valid_times(files))
        for note in comparison.notes:
            print_line(f"note: {note}", "yellow")
        attributes = attributes_of(files.where, comparison, record.provenance)
        refuse_other_scores(self.out, "--out", attributes)
        with writable_folder(self.out, "--out") as out:
            grid = grid_of(files.grid.latitude, files.grid.longitude, regions)
            dims = dims_of_scores(comparison, grid, files.leads, members)
            shard, total = parse_shard(self.shard), len(files.starts)
            # Sums of other comparisons have another folder.
            key = hashlib.sha256(repr((dims, sorted(attributes.items()))).encode())
            stored = out / f"sums-{key.hexdigest()[:8]}" if shard[1] > 1 else None
            count = len(range(shard[0] - 1, total, shard[1]))
            sums = score_files(
                files,
                comparison,
                grid,
                num_members=members,
                progress=lambda done: print_line(f"{done} of {count} start dates"),
                shard=shard,
                folder=stored,
            )
            # A part that ends meanwhile may have read fewer, and written last.
            done = 0
            while sums is not None and len(sums.starts) > done:
                done = len(sums.starts)
                report(dims.scores(sums, attributes), out)
                sums = sums if stored is None else merged_sums(stored, files.starts)
            if 0 < done < total:
                note = f"note: scores of {done} of {total} start dates so far"
                print_line(note, "yellow")
            elif stored is not None:
                shutil.rmtree(stored, ignore_errors=True)
        return OK


main = Score.main


def refuse_other_scores(
    folder: str, option: str, attributes: Mapping[str, Any]
) -> None:
    """Checks that scores would replace none but earlier ones of the same forecasts."""
    path = Path(os.path.expandvars(folder)).expanduser()
    if others := other_scores(path, attributes):
        raise FileExistsError(
            f"{option}: {path} holds other scores ({others}); give another folder"
        )


def report(scores: Any, folder: str | Path) -> None:
    """Writes scores and their page, and prints the table."""
    try:
        with write_errors(Path(folder)):
            paths = write_scores(scores, folder)
            for point in extensions("page").values():
                paths = point.load()(scores, Path(folder) / PAGE_NAME), *paths
    except WriteError as error:
        raise CommandError(str(error), FAILED) from error
    print_table(score_table(scores))
    print_line(f"scores: {', '.join(map(str, paths))}")


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
