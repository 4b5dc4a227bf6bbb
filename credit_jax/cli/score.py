"""Scores of forecasts: `python -m credit_jax.score --forecast DIR --out REPORT`.

Reads a Zarr store or CREDIT's NetCDF folders, compares with the truth, persistence and
climatology, and writes scores.nc and scores.csv (`evaluation.scores`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
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
from credit_jax.config.data import in_training
from credit_jax.config.inference import InferenceConfig
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.comparison import ScoreComparison, attributes_of
from credit_jax.evaluation.forecast_files import ForecastFiles, in_common, valid_times
from credit_jax.evaluation.opening import (
    NO_CLIMATOLOGY,
    ScoreOptions,
    dims_of_scores,
    grid_of,
    in_order,
    observation_files,
    open_comparison,
    open_forecasts,
    score_files,
)
from credit_jax.evaluation.regions import Region, choose_regions
from credit_jax.evaluation.scores import (
    NONE_TRAINED,
    PAGE_NAME,
    TRAINING_DATES,
    UNKNOWN,
    difference_table,
    other_scores,
    score_table,
    write_scores,
)
from credit_jax.evaluation.sums import (
    ScoreDims,
    ScoreSums,
    merged_sums,
    paired_differences,
    path_of_sums,
)
from credit_jax.forecast.archive import ForecastRecord, record_beside
from credit_jax.io.errors import WriteError, writable_folder, write_errors
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.plan.forecast import forecast_truth
from credit_jax.training.display import print_table


class ComparisonOptions(Command):
    """What forecasts are compared with."""

    truth: str | None = option(
        "a YAML file with a data section, a NetCDF file or a Zarr store; to `score` "
        "also observations: CSV, Parquet, NetCDF, a folder of such files (default: the "
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
    repositories = ("forecast", "against")

    forecast: str = option(
        "folder of `credit-jax forecast` or of CREDIT, a Zarr store, or an Icechunk "
        "repository",
        metavar="DIR",
    )
    against: str | None = option(
        "another forecast: differences of scores, and their 95 % intervals", None, "DIR"
    )
    height: str | None = option(
        "height (m) or geopotential of the forecast's surface: brings temperatures to "
        "the elevation of stations by 6.5 K/km",
        None,
        "DATA",
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
        tables = observation_files(self.truth)
        if self.height is not None and not tables:
            raise ValueError("--height belongs to observations as --truth")
        if self.shard != "1/1" and (tables or self.against):
            raise ValueError("--shard belongs to one forecast and a truth on its grid")
        forecast = self._opened("--forecast", self.forecast)
        if tables or self.against:
            return self._score_starts(forecast, regions, tables)
        return self._score_grid(*forecast, regions)

    def _opened(self, name: str, path: str) -> tuple[ForecastFiles, ForecastRecord]:
        """The forecasts of an option, which are finished and have members."""
        files, record = finished_forecasts(name, path)
        available = files.num_members
        if self.members is not None and not 1 <= self.members <= available:
            raise ValueError(
                f"--members must be from 1 to {available}, the members of the "
                f"forecasts; got {self.members}"
            )
        if not files.leads.size:
            raise ValueError(f"{name}: {path} has no lead time above 0")
        return files, record

    def _compared(
        self, files: ForecastFiles, record: ForecastRecord
    ) -> tuple[ScoreComparison, dict[str, Any]]:
        """The references on the grid of forecasts, and the attributes of the scores."""
        config = _config(record, files)
        options = self.score_options(config, record.training_dates)
        comparison = open_comparison(options, files.grid.table, valid_times(files))
        for note in comparison.notes:
            print_line(f"note: {note}", "yellow")
        return comparison, attributes_of(files.where, comparison, record.provenance)

    def _score_starts(
        self,
        forecast: tuple[ForecastFiles, ForecastRecord],
        regions: tuple[Region, ...],
        tables: Sequence[str],
    ) -> int:
        """Scores at stations, or beside another forecast: sums of each start date."""
        forecasts, about = [forecast], dict[str, Any]()
        if self.against is not None:
            other, other_record = self._opened("--against", self.against)
            files, other, notes = in_common(forecast[0], other)
            for note in notes:
                print_line(f"note: {note}", "yellow")
            forecasts = [(files, forecast[1]), (other, other_record)]
            about["against"] = other.where
        noted = list[str]()
        parts, scored = dict[str, Any](), list[tuple[list[ScoreSums], ScoreDims]]()
        with writable_folder(self.out, "--out") as out:
            for files, record in forecasts:
                ranges, comparison = record.training_dates, None
                seen = in_training(valid_times(files), ranges) if ranges else ""
                described: dict[str, Any] = {
                    "title": "scores of forecasts at stations",
                    "forecast": files.where,
                    "truth": self.truth,
                    "climatology": NO_CLIMATOLOGY,
                    TRAINING_DATES: seen or (NONE_TRAINED if ranges else UNKNOWN),
                }
                if not tables:
                    comparison, described = self._compared(files, record)
                if not scored:
                    about = described | about
                    refuse_other_scores(out, "--out", about)
                members = self.members or files.num_members
                if comparison is None:
                    point = next(iter(extensions("observations").values()), None)
                    if point is None:
                        raise ValueError(
                            "--truth: observations are scored by "
                            "credit_jax.extensions.stations, which is not installed: "
                            "pip install -e . once more"
                        )
                    result = point.load()(
                        tables,
                        files,
                        regions=regions,
                        variables=in_order(self.variables),
                        num_members=members,
                        height=self.height,
                    )
                    for note in [n for n in result.notes if n not in noted]:
                        print_line(f"note: {note}", "yellow")
                    noted += result.notes
                    if not scored:
                        about |= result.attributes
                        parts["maps"] = result.write(out)
                    scored.append((result.sums, result.dims))
                    continue
                grid = grid_of(files.grid.latitude, files.grid.longitude, regions)
                dims = dims_of_scores(comparison, grid, files.leads, members)
                with tempfile.TemporaryDirectory() as stored:
                    folder = Path(stored)
                    score_files(
                        files, comparison, grid, num_members=members, folder=folder
                    )
                    paths = [path_of_sums(folder, start) for start in files.starts]
                    scored.append(([*map(ScoreSums.load, paths)], dims))
            (sums, dims), *others = scored
            differences = None
            for other_sums, other_dims in others:
                sides = [
                    ", ".join((*(c.label for c in d.channels), *d.regions))
                    for d in (dims, other_dims)
                ]
                if sides[0] != sides[1]:
                    raise ValueError(
                        f"--against: the scores are of {sides[0]}, and of {sides[1]}; "
                        "choose common --variables"
                    )
                differences = paired_differences(sums, other_sums)
                weights = [
                    sum(x.arrays["forecast/weight"].sum() for x in side)
                    for side in (sums, other_sums)
                ]
                if abs(weights[0] - weights[1]) > 1e-6 * weights[0]:
                    print_line(
                        "note: --against: the forecasts have values at different "
                        f"points, of weights {weights[0]:g} and {weights[1]:g}",
                        "yellow",
                    )
            total = functools.reduce(ScoreSums.merge, sums)
            report(dims.scores(total, about, differences), out, **parts)
        return OK

    def _score_grid(
        self,
        files: ForecastFiles,
        record: ForecastRecord,
        regions: tuple[Region, ...],
    ) -> int:
        """Scores, of all or a part of the start dates, on the grid of the forecast."""
        comparison, attributes = self._compared(files, record)
        refuse_other_scores(self.out, "--out", attributes)
        with writable_folder(self.out, "--out") as out:
            grid = grid_of(files.grid.latitude, files.grid.longitude, regions)
            members = self.members or files.num_members
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


def finished_forecasts(name: str, path: str) -> tuple[ForecastFiles, ForecastRecord]:
    """Opens the forecasts of an option, and refuses those that are not finished."""
    files = open_forecasts(path)
    record = record_beside(files.where)
    if record.unfinished:
        raise ValueError(
            f"{name}: {record.unfinished} of {record.total} forecasts in {path} "
            "are not finished; make them with forecast --resume"
        )
    return files, record


def refuse_other_scores(
    folder: str | Path, option: str, attributes: Mapping[str, Any]
) -> None:
    """Checks that scores would replace none but earlier ones of the same forecasts."""
    path = Path(os.path.expandvars(folder)).expanduser()
    if others := other_scores(path, attributes):
        raise FileExistsError(
            f"{option}: {path} holds other scores ({others}); give another folder"
        )


def report(scores: Any, folder: str | Path, **parts: Any) -> None:
    """Writes scores and their page, of which `parts` are more, and prints the table."""
    try:
        with write_errors(Path(folder)):
            paths = write_scores(scores, folder)
            for point in extensions("page").values():
                paths = point.load()(scores, Path(folder) / PAGE_NAME, **parts), *paths
    except WriteError as error:
        raise CommandError(str(error), FAILED) from error
    print_table(score_table(scores))
    if "rmse_difference" in scores:
        print_table(difference_table(scores))
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
