"""A Zarr store made for training: all variables of a config, one time a chunk.

Each field type of a source is a group (`ERA5/prognostic`) with the times that samples
read. A shard holds the times of a day, uncompressed, as float32 or in 16 bits. What is
written lies beside the store, in a folder that is renamed when it is complete:

    .NAME.partial/request.json     what is written; all jobs must agree
    .NAME.partial/statistics/      of each shard, for 16 bits
    .NAME.partial/store/           the store; its arrays exist before their shards
    .NAME.partial/records/         of each complete shard: digests, errors of 16 bits

A shard without a record is written anew, so that a job may be killed at any time.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import xarray as xr
import yaml
import zarr
from jaxtyping import Float, Int16
from rich.console import Console

from credit_jax.config import Config, dump_config
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data import Dataset, open_dataset, splits
from credit_jax.data.calendars import STANDARD, as_dates
from credit_jax.data.clock import common_starts
from credit_jax.data.forecast_data import curvilinear_axes
from credit_jax.data.sources.anemoi import AnemoiSource
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.reader import OFFSET_OF_LEVELS, SCALE_OF_LEVELS
from credit_jax.data.sources.source import (
    BadSampleError,
    FileGrid,
    Source,
    field_key,
    variables_of,
)
from credit_jax.extensions.preprocess.scaler_fitting import in_threads
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file, new_folder
from credit_jax.io.digests import (
    FileRecord,
    find_damage,
    record_files,
    record_of,
    write_records,
)
from credit_jax.named_fields.units import DEGREES
from credit_jax.training.display import Display
from credit_jax.transforms.build import GRID_TYPES
from credit_jax.transforms.statistics import Extremes, MeanAndVariance

DIGESTS, REQUEST = "digests.json", "request.json"
CONFIG, ERRORS = "config.yaml", "errors.csv"
# A shard has at least this many times, and at most so many bytes, which are in memory.
MIN_TIMES, MAX_SHARD_BYTES = 4, 2**31
# Integers of 16 bits that stand for values; -32768 is NaN.
_LARGEST, _NAN = 32767, -32768
# A scale that all levels share is taken if the rms error of none is above this share of
# its deviation: humidity varies by orders of magnitude between levels, wind does not.
_COMMON = 1e-3
_SPACE = {name: dict(attributes) for name, attributes in DEGREES.items()}

Space = Float[np.ndarray, "level *space"]
Packed = Int16[np.ndarray, "level *space"]
# Of each level, or one for all.
PerLevel = Float[np.ndarray, " _"]


@dataclass(frozen=True)
class Packing:
    """Scale and offset of values in 16 bits: value = integer * scale + offset."""

    # Scales have 8 significant bits and offsets those of float32, so that values are
    # the same bits in float32 and, as xarray computes, in float64. Zero is exact in the
    # range.
    # (level,), or (1,) for all levels.
    scale: PerLevel
    offset: PerLevel
    deviation: PerLevel  # (level,) standard deviations

    @classmethod
    def of(cls, moments: MeanAndVariance, extremes: Extremes) -> Packing:
        """The packing of a variable by its statistics."""
        empty = extremes.count == 0
        low, high = (
            np.where(empty, 0, ends).astype(np.float64)
            for ends in (extremes.low, extremes.high)
        )
        deviation = np.sqrt(np.where(empty, 0, moments.variance))
        scale = _scale(low.min(keepdims=True), high.max(keepdims=True))
        if (scale / np.sqrt(12) <= _COMMON * deviation).all():
            low, high = low.min(keepdims=True), high.max(keepdims=True)
        scale = _scale(low, high)
        middle = (low + high) / 2
        offset = np.where(
            (low <= 0) & (high >= 0), np.rint(middle / scale) * scale, middle
        )
        return cls(scale, offset.astype(np.float32).astype(np.float64), deviation)

    def pack(self, x: Space) -> Packed:
        """Returns the integers nearest to values."""
        scale, offset = self._along_levels(x)
        steps = np.rint((x.astype(np.float64) - offset) / scale)
        steps = np.clip(steps, -_LARGEST, _LARGEST)
        return np.where(np.isnan(x), _NAN, steps).astype(np.int16)

    def unpack(self, steps: Packed) -> Space:
        """Returns the values of integers, as they are read."""
        scale, offset = (v.astype(np.float32) for v in self._along_levels(steps))
        values = steps.astype(np.float32) * scale + offset
        return np.where(steps == _NAN, np.float32("nan"), values)

    def _along_levels(self, x: np.ndarray) -> list[np.ndarray]:
        """Scale and offset, to be broadcast over a field."""
        shape = -1, *[1] * (x.ndim - 1)
        return [values.reshape(shape) for values in (self.scale, self.offset)]


def _scale(low: PerLevel, high: PerLevel) -> PerLevel:
    """(level,) step between integers: 8 significant bits, rounded up; 1 if constant."""
    # Two integers at each end are left for the rounding of the offset.
    step = (high - low) / (2 * (_LARGEST - 2))
    mantissa, exponent = np.frexp(np.where(step > 0, np.maximum(step, 2.0**-110), 1))
    return np.ldexp(np.ceil(mantissa * 256) / 256, exponent)


@dataclass(frozen=True)
class Group:
    """A field type of a source: a group of the store."""

    path: str  # path in the store
    source: Source  # the opened source
    field_type: str  # the field type
    grid: FileGrid  # grid of the fields
    times: np.ndarray  # (time,) labels; of static fields the one at which they are read
    missing: tuple[str, ...]  # labels that the source leaves out of samples

    @cached_property
    def variables(self) -> dict[str, tuple[str, int]]:
        """Name of a variable -> its key, and the number of its levels; 0 without."""
        config, name = self.source.config, self.source.name
        return {
            variable: (
                field_key(name, self.field_type, dims, variable),
                self.source.num_levels if dims == "3d" else 0,
            )
            for dims, variable in variables_of(config, self.field_type)
        }

    @cached_property
    def shard_times(self) -> int:
        """Number of times of a shard: those of a day, or of several days."""
        day, count = np.timedelta64(1, "D"), len(self.times)
        step = np.median(np.diff(self.times)) if count > 1 else day
        per_day = max(1, round(day / step))
        num_times = per_day * -(-MIN_TIMES // per_day)
        levels = sum(max(1, levels) for _, levels in self.variables.values())
        num_bytes = 4 * levels * int(np.prod(self.grid.shape))
        return max(1, min(num_times, count, MAX_SHARD_BYTES // num_bytes))

    @property
    def level_dim(self) -> str:
        return self.source.config.level_coord or "level"

    @property
    def space(self) -> tuple[str, ...]:
        """Names of the dims of rows and columns, or of points."""
        if len(self.grid.shape) == 1:
            return ("point",)
        if self.grid.latitude is None or self.grid.longitude is None:
            return "y", "x"
        return "latitude", "longitude"

    def read(self, number: int, num_threads: int) -> dict[str, np.ndarray]:
        """Reads the times of a shard, in order: name -> (time, level, *space)."""
        start = number * self.shard_times
        times = self.times[start : start + self.shard_times]
        shapes = {
            name: (len(times), max(1, levels), *self.grid.shape)
            for name, (_, levels) in self.variables.items()
        }
        fields = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}

        def read(index: int) -> None:
            step = self.source.read(self.field_type, times[index : index + 1])
            for name, (key, _) in self.variables.items():
                if step[key].shape[:1] + step[key].shape[2:] != shapes[name][1:]:
                    raise ValueError(
                        f"{key} at {str(times[index])[:16]} has the shape (level, "
                        f"time, ...) {step[key].shape}, expected {shapes[name][1:]} as "
                        f"in {self.grid.where}; bring all files to one grid"
                    )
                fields[name][index] = step[key][:, 0]

        for _ in in_threads(read, range(len(times)), num_threads):
            pass
        return fields


@activity("writing the store")
def write_store(
    config: Config,
    folder: Path,
    *,
    bits: int = 32,  # 16: integers with scale and offset, but for static fields
    shard: tuple[int, int] = (1, 1),  # number of this job, from 1, of how many
    num_threads: int | None = None,
    console: Console | None = None,
) -> str | None:
    """Writes the data of a config into one Zarr v3 store; gives the YAML to read it."""
    if num_threads is None:
        num_threads = config.trainer.thread_workers
    work = folder.absolute().parent / f".{folder.name}.partial"
    with Display(console) as display:
        groups, sections = _open_groups(config, folder, display)
        request = {
            "bits": bits,
            "data": config.data.model_dump(mode="json"),
            "groups": {
                group.path: {
                    "shard_times": group.shard_times,
                    "shape": list(group.grid.shape),
                    "times": [str(time) for time in group.times],
                }
                for group in groups
            },
        }
        written = dump_config(config) | sections
        text = yaml.safe_dump(written, sort_keys=False, width=88)
        if folder.exists():
            _agree(folder / REQUEST, request, folder)
            damage = find_damage(folder / DIGESTS)
            if damage or not (folder / DIGESTS).exists():
                raise ValueError(
                    f"{folder}: {len(damage)} files differ from {DIGESTS}, such as "
                    f"{(damage or ['all'])[0]}; remove the store and write it again"
                )
            shutil.rmtree(work, ignore_errors=True)
            display.message(f"{folder} is complete; its files have their digests")
            return text
        work.mkdir(parents=True, exist_ok=True)
        _agree(work / REQUEST, request, folder)
        if _Writer(work, groups, bits, shard, num_threads, display).write(folder, text):
            return text
    # The parts of other jobs are missing.
    return None


def _agree(path: Path, request: Mapping[str, Any], folder: Path) -> None:
    """Checks that a store is the requested one, and records it if there is none."""
    if path.parent == folder or path.exists():
        earlier = json.loads(path.read_text()) if path.exists() else {}
        differ = [key for key in request if earlier.get(key) != request[key]]
        if differ:
            raise ValueError(
                f"--store {folder}: {path.parent} was written with other "
                f"{' and '.join(differ)}; name another folder, or remove it"
            )
        return
    with new_file(path) as partial:
        partial.write_text(json.dumps(request), encoding="utf-8")


def _open_groups(
    config: Config, folder: Path, display: Display
) -> tuple[tuple[Group, ...], dict[str, Any]]:
    """The groups of the store, and the sections of the config that reads them."""
    blocks = (*config.preblocks.ic_only.values(), *config.preblocks.per_step.values())
    shared_grid = not any(block.type in GRID_TYPES for block in blocks)
    for name, source in config.data.source.items():
        if source.dataset_type == "arco_era5_co":
            raise ValueError(
                f"--store: data.source.{name} has coefficients beside points, and a "
                "store has fields of one grid; copy its stores to a folder, and name "
                f"it by data.source.{name}.store"
            )
    datasets = {"data": open_dataset(config.data, shared_grid=shared_grid)}
    if "valid" in splits(config):
        datasets["validation_data"] = open_dataset(
            config.validation_data,
            like=datasets["data"].coordinates(),
            shared_grid=shared_grid,
        )
    written, groups = dump_config(config), dict[str, Group]()
    sections = {name: dict(written[name] or {}) for name in datasets if name in written}
    notes: dict[str, None] = {}
    for name, dataset in datasets.items():
        notes |= dict.fromkeys(dataset.check(shared_grid=shared_grid))
        separate = name == "data" or config.validation_overrides.source is not None
        prefix = "" if name == "data" or not separate else "validation/"
        if separate:
            sections[name]["source"] = {
                key: _section(dataset, key, folder / prefix / key)
                for key in dataset.data.source
            }
        for group in _groups_of(dataset, prefix):
            if (earlier := groups.get(group.path)) is not None:
                times = np.union1d(earlier.times, group.times)
                missing = sorted({*earlier.missing, *group.missing})
                group = dataclasses.replace(
                    earlier,
                    times=times[:1] if group.field_type == "static" else times,
                    missing=tuple(missing),
                )
            groups[group.path] = group
    for line in notes:
        display.message(f"note: {line}")
    for path in (str(folder), *groups):
        if any(character in path for character in "%*?"):
            raise ValueError(
                f"--store: {path!r} has one of % * ?, which are wildcards of the paths "
                "in a config; give the folder, or the source, another name"
            )
    return tuple(groups.values()), sections


def _section(dataset: Dataset, name: str, folder: Path) -> Any:
    """The section that reads a source from a store."""
    source, clock = dataset.sources[name], dataset.clocks[name]
    config, data = source.config, dataset.data
    section = {
        key: value
        for key, value in config.model_dump(mode="json", exclude_unset=True).items()
        if key in SourceConfig.model_fields and key not in ("levels", "engine")
    }
    section |= {"dataset_type": "local", "variables": {}}
    if config.variables.has_levels:
        section["level_coord"] = config.level_coord or "level"
    if len(next(iter(source.grids())).shape) == 1:
        section["grid_type"] = "unstructured"
    if clock.mode == "cyclic":
        # By default they are those of the first file.
        section["cycle_year"] = clock.cycle_year
        for key, end in zip(
            ("start_datetime", "end_datetime"), clock.ranges[0], strict=True
        ):
            if not (getattr(config, key) or getattr(data, key)):
                section[key] = end.isoformat()
    for kind, field in config.variables.by_type.items():
        names = {"vars_3D": [*field.vars_3D], "vars_2D": [*field.vars_2D]}
        names = {key: value for key, value in names.items() if value}
        section["variables"][kind] = {**names, "path": str(folder / kind)}
    return section


def _groups_of(dataset: Dataset, prefix: str) -> Iterator[Group]:
    """Yields the groups of a data set, with the times that its samples read."""
    # A variable has all times of its source that its files have: forecasts are compared
    # with the truth at their first time, which no sample has as a target.
    every = common_starts(dataset.data, dataset.clocks, dataset.calendar)
    both = dataset, dataclasses.replace(dataset, starts=every)
    for name in dataset.data.source:
        source = dataset.sources[name]
        kinds = [*source.config.variables.by_type]
        timed = [kind for kind in kinds if kind != "static"]
        windows = {
            kind: [np.unique(each.window(name, kind)) for each in both]
            for kind in kinds
        }
        none = np.array([], "datetime64[ns]")
        full = [windows[kind][1] for kind in timed]
        missing = np.concatenate([none, *(x[~source.available(x)] for x in full)])
        used = np.concatenate([none, *(windows[kind][0] for kind in timed)])
        grids = [*source.grids()]
        grids = grids if len(grids) == len(kinds) else grids[:1] * len(kinds)
        for kind, grid in zip(kinds, grids, strict=True):
            times = windows[kind][0]
            if kind == "static":
                times = times[:1]
            else:
                sure = times[:0] if dataset.data.on_bad_sample == "skip" else times
                present = list[np.datetime64]()
                for time in np.setdiff1d(used, sure):
                    with suppress(BadSampleError):
                        source.check(kind, np.array([time]))
                        present.append(time)
                times = np.union1d(sure, np.array(present, sure.dtype))
            labels = tuple(str(label) for label in np.unique(missing))
            yield Group(f"{prefix}{name}/{kind}", source, kind, grid, times, labels)


@dataclass(frozen=True)
class _Writer:
    """One job that writes a part of a store."""

    work: Path  # folder beside the store
    groups: tuple[Group, ...]
    bits: int  # of a value
    shard: tuple[int, int]  # number of the job, and number of jobs
    num_threads: int  # that read
    display: Display

    @cached_property
    def units(self) -> list[tuple[Group, int]]:
        """All shards of the store, of all variables of a group together."""
        return [
            (group, number)
            for group in self.groups
            for number in range(-(-len(group.times) // group.shard_times))
        ]

    @property
    def store(self) -> Path:
        """The folder that becomes the store."""
        return self.work / "store"

    def write(self, folder: Path, text: str) -> bool:
        """Writes this job's part, and renames the store if it is complete."""
        packings: dict[str, dict[str, Packing]] = {}
        if self.bits == 16:
            if not self._record("statistics", "statistics", self._statistics):
                return False
            # Path of a group -> variable -> its packing, by the statistics of all jobs.
            merged: dict[str, dict[str, tuple[MeanAndVariance, Extremes]]] = {}
            for group, record in self._records("statistics"):
                for name, lists in record.items():
                    part = {k: np.array(v, np.float64) for k, v in lists.items()}
                    moments = MeanAndVariance(
                        part["count"], part["mean"], part["squares"]
                    )
                    ends = Extremes(part["count"], part["low"], part["high"])
                    by_name = merged.setdefault(group.path, {})
                    if name in by_name:
                        earlier = by_name[name]
                        moments = earlier[0].merged(moments)
                        ends = earlier[1].merged(ends)
                    by_name[name] = moments, ends
            packings = {
                path: {name: Packing.of(*both) for name, both in by_name.items()}
                for path, by_name in merged.items()
            }
        if not self.store.exists():
            try:
                with new_folder(self.store) as partial:
                    self._create(partial, packings)
            except OSError:
                if not self.store.exists():  # else another job was faster
                    raise

        def write(group: Group, number: int) -> dict[str, Any]:
            return self._write(group, number, packings.get(group.path, {}))

        if not self._record("records", "writing the store", write):
            return False
        try:
            self._finish(folder, text, packings)
        except OSError:
            if not folder.exists():  # else another job was faster
                raise
        shutil.rmtree(self.work, ignore_errors=True)
        self.display.message(f"{folder} is complete")
        return True

    def _path(self, kind: str, index: int) -> Path:
        return self.work / kind / f"{index:06d}.json"

    def _records(self, kind: str) -> Iterator[tuple[Group, Any]]:
        for index, (group, _) in enumerate(self.units):
            yield group, json.loads(self._path(kind, index).read_text())

    def _record(self, kind: str, title: str, content_of: Any) -> bool:
        """Makes the missing records of this job's shards; whether all jobs have."""
        job, jobs = self.shard
        # Neighbors in time, which the chunks of the sources hold together.
        first, end = (len(self.units) * number // jobs for number in (job - 1, job))
        left = [i for i in range(first, end) if not self._path(kind, i).exists()]
        self.display.start(title, total=end - first, done=end - first - len(left))
        for index in left:
            content = content_of(*self.units[index])
            with new_file(self._path(kind, index)) as partial:
                partial.write_text(json.dumps(content), encoding="utf-8")
            self.display.advance(1, 1)
        num_left = sum(not self._path(kind, i).exists() for i in range(len(self.units)))
        if num_left:
            self.display.message(
                f"part {job} of {jobs} is done ({title}); {num_left} of "
                f"{len(self.units)} shards are those of other parts: start the jobs "
                "again when all have ended"
            )
        return not num_left

    def _statistics(self, group: Group, number: int) -> dict[str, Any]:
        """Statistics of the levels of each variable in a shard."""
        if group.field_type == "static":
            return {}
        statistics = {}
        for name, field in group.read(number, self.num_threads).items():
            if np.isinf(field).any():
                key, _ = group.variables[name]
                bad = np.isinf(field).reshape(len(field), -1).any(-1)
                time = group.times[number * group.shard_times + int(bad.argmax())]
                raise ValueError(
                    f"{key} at {str(time)[:16]} has infinite values, which 16 bits do "
                    "not hold; repair the data, or leave --bits out"
                )
            levels = field.reshape(*field.shape[:2], 1, 1, -1)
            moments, ends = MeanAndVariance.of(levels, 1), Extremes.of(levels, 1)
            values = vars(moments) | {"low": ends.low, "high": ends.high}
            statistics[name] = {k: value.tolist() for k, value in values.items()}
        return statistics

    def _create(
        self, folder: Path, packings: Mapping[str, Mapping[str, Packing]]
    ) -> None:
        """Creates the groups with their coordinates, and arrays without values."""
        root = zarr.open_group(folder, mode="w", zarr_format=3)
        for group in self.groups:
            for end in range(1, group.path.count("/") + 2):
                root.require_group("/".join(group.path.split("/")[:end]))
            coordinates, source = _coordinates(group), group.source
            # All attributes where a file has them.
            attributes: dict[str, dict[str, Any]] = dict(source.attributes())
            of_files = source.variables() if isinstance(source, FileSource) else ()
            for variable in of_files:
                attributes[variable.key] = {
                    str(name): value.tolist() if hasattr(value, "tolist") else value
                    for name, value in variable.array.attrs.items()
                }
            sizes = dict(zip(group.space, group.grid.shape, strict=True))
            arrays: list[dict[str, Any]] = []
            for name, (key, levels) in group.variables.items():
                dims = {group.level_dim: levels} if levels else {}
                chunks = shape = {**dims, **sizes}
                about, shards = attributes.get(key, {}), None
                if group.field_type != "static":
                    time = source.config.time_coord
                    shape = {time: len(group.times), **shape}
                    chunks = {time: 1, **chunks}
                    shards = tuple({**chunks, time: group.shard_times}.values())
                packing = packings.get(group.path, {}).get(name)
                if packing is not None:
                    about = dict(about)
                    # A scale for all levels is a number, or else the name of an array.
                    for attribute, of_levels, values in (
                        ("scale_factor", SCALE_OF_LEVELS, packing.scale),
                        ("add_offset", OFFSET_OF_LEVELS, packing.offset),
                    ):
                        if len(values) == 1:
                            about[attribute] = values[0]
                            continue
                        about[of_levels] = f"{name}_{of_levels}"
                        array = (group.level_dim,), values.astype(np.float32)
                        coordinates[about[of_levels]] = array
                    about["_FillValue"] = _NAN
                arrays.append(
                    {
                        "name": f"{group.path}/{name}",
                        "shape": tuple(shape.values()),
                        "chunks": tuple(chunks.values()),
                        "shards": shards,
                        "dtype": "float32" if packing is None else "int16",
                        "fill_value": float("nan") if packing is None else _NAN,
                        "dimension_names": tuple(shape),
                        "attributes": about,
                    }
                )
            coordinates.to_zarr(
                folder, group=group.path, mode="a", zarr_format=3, consolidated=False
            )
            for options in arrays:
                root.create_array(compressors=None, **options)

    def _write(
        self, group: Group, number: int, packings: Mapping[str, Packing]
    ) -> dict[str, Any]:
        """Writes a shard of each variable of a group; returns its record."""
        errors, writes = {}, []
        for name, field in group.read(number, self.num_threads).items():
            if name in packings:
                packing, steps = packings[name], np.empty(field.shape, np.int16)
                parts = []
                for index, x in enumerate(field):
                    steps[index] = packing.pack(x)
                    error = np.abs(packing.unpack(steps[index]).astype(np.float64) - x)
                    error = error.reshape(len(x), -1)
                    valid = ~np.isnan(error)
                    largest = error.max(-1, initial=0, where=valid)
                    squares = np.square(error).sum(-1, where=valid)
                    parts.append((valid.sum(-1), squares, largest))
                count, squares, largest = map(np.array, zip(*parts, strict=True))
                errors[name] = {
                    "count": count.sum(0).tolist(),
                    "squares": squares.sum(0).tolist(),
                    "largest": largest.max(0).tolist(),
                }
                field = steps
            if not group.variables[name][1]:
                field = field[:, 0]
            path = self.store / group.path / name
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
            array = tensorstore.open(spec, write=True, open=True).result()
            start = number * group.shard_times
            part = field[0] if group.field_type == "static" else field
            part_of = (
                ...
                if group.field_type == "static"
                else slice(start, start + len(field))
            )
            writes.append((path, part.ndim, array[part_of].write(part)))
        files = {}
        for path, ndim, write in writes:
            write.result()
            first = [0] if group.field_type == "static" else [number]
            file = path.joinpath("c", *map(str, first + [0] * (ndim - 1)))
            if file.exists():  # no file of a shard that is nothing but NaN
                name = file.relative_to(self.store).as_posix()
                files[name] = dataclasses.asdict(record_of(file))
        return {"files": files, "errors": errors}

    def _finish(
        self,
        folder: Path,
        text: str,
        packings: Mapping[str, Mapping[str, Packing]],
    ) -> None:
        """Writes the digests and the errors of a complete store, and renames it."""
        files: dict[str, FileRecord] = {}
        sums: dict[tuple[str, str], dict[str, np.ndarray]] = {}
        for group, record in self._records("records"):
            for name, entry in record["files"].items():
                files[name] = FileRecord(**entry)
            for name, lists in record["errors"].items():
                part = {k: np.array(v, np.float64) for k, v in lists.items()}
                total = sums.setdefault((group.path, name), part)
                if total is not part:
                    total["count"] += part["count"]
                    total["squares"] += part["squares"]
                    total["largest"] = np.maximum(total["largest"], part["largest"])
        # Errors of each level of each variable, in standard deviations.
        rows = list[dict[str, Any]]()
        for group in self.groups:
            values = group.source.axes().levels
            for name, packing in packings.get(group.path, {}).items():
                total, (key, levels) = sums[group.path, name], group.variables[name]
                deviation = packing.deviation
                scale = np.where(deviation > 0, deviation, 1)
                rms = np.sqrt(total["squares"] / np.maximum(total["count"], 1)) / scale
                largest = total["largest"] / scale
                for index in range(max(1, levels)):
                    level = values[index] if levels and values else index + 1
                    row = {
                        "variable": key,
                        "level": f"{level:g}" if levels else "",
                        "deviation": f"{deviation[index]:.4g}",
                        "largest_error": f"{largest[index]:.3g}",
                        "rms_error": f"{rms[index]:.3g}",
                    }
                    rows.append(row)
                    label = f"{row['variable']} {row['level']}".strip()
                    self.display.message(
                        f"  {label}: largest error {row['largest_error']}, rms "
                        f"{row['rms_error']} of its deviation {row['deviation']}"
                    )
        if rows:
            with new_file(self.store / ERRORS) as partial, partial.open("w") as file:
                writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        shutil.copyfile(self.work / REQUEST, self.store / REQUEST)
        with new_file(self.store / CONFIG) as partial:
            partial.write_text(text, encoding="utf-8")
        (self.store / DIGESTS).unlink(missing_ok=True)
        others = record_files(self.store, leave_out=files)
        write_records(self.store / DIGESTS, files | others)
        os.rename(self.store, folder)


def _coordinates(group: Group) -> xr.Dataset:
    """The coordinates of a group, and the times that its source leaves out."""
    source, grid = group.source, group.grid
    config, axes = source.config, source.axes()
    coordinates: dict[str, Any] = {}
    if group.field_type != "static":
        dates = as_dates(group.times, source.calendar)
        times = group.times if source.calendar == STANDARD else dates
        coordinates[config.time_coord] = (config.time_coord,), times
    levels = axes.levels or config.level_values
    if config.variables.has_levels and levels and len(levels) == source.num_levels:
        attributes = source.attributes().get(f"{source.name}/level", {})
        coordinates[group.level_dim] = (group.level_dim,), np.array(levels), attributes
    indices: Any = grid.latitude, grid.longitude
    if group.space == ("y", "x"):
        indices = curvilinear_axes(source) or indices
    elif isinstance(source, AnemoiSource):
        indices = source.points if group.space == ("point",) else indices
    elif group.space == ("point",) and isinstance(source, FileSource):
        opened = next(source.variables(group.field_type)).opened
        indices = opened.latitude, opened.longitude
    for (name, attributes), values in zip(_SPACE.items(), indices, strict=True):
        dims = (name,) if name in group.space else group.space
        if name in group.space or np.shape(values) == grid.shape:
            coordinates[name] = dims, np.asarray(values, np.float64), attributes
    clash = coordinates.keys() & group.variables.keys()
    if clash:
        raise ValueError(
            f"data.source.{source.name}: {', '.join(clash)} is the name of a variable "
            "and of a coordinate, and a store has one array of a name; rename it in "
            "the files"
        )
    absent = group.missing and group.field_type != "static"
    missing = {"missing_dates": [*group.missing]} if absent else {}
    return xr.Dataset(coords=coordinates, attrs=missing)
