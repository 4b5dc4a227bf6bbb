"""The truth that forecasts are compared with, from a data section or from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config import parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.inference import InferenceDataConfig
from credit_jax.config.sources.source import FIELD_TYPES, OUTPUT_TYPES
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data.calendars import near_times, rounding_of, to_labels
from credit_jax.data.opened_data import NamedData, OpenedData, open_data
from credit_jax.data.sources.source import field_key, variables_of
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.tree import by_key
from credit_jax.named_fields.variables import (
    LevelSelection,
    Variable,
    Variables,
    labeled_levels,
)
from credit_jax.transforms.base import variable_of

TIMES = ("time", "valid_time")


@runtime_checkable
class ReferenceFields(Protocol):
    """Fields at given times, of a truth or a climatology."""

    @property
    def table(self) -> Variables:
        """The available variables; its origin is an attribute of scores, too."""
        ...

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        """All wanted levels of all wanted variables at a time, float32."""
        ...


@dataclass(frozen=True, eq=False)
class FileReference:
    """A NetCDF file or a Zarr store with times."""

    file: GridFile
    time: str  # name of its dim

    @property
    def table(self) -> Variables:
        return self.file.table

    def notes(self, times: np.ndarray) -> list[str]:
        """Lists what is read otherwise than a file says, one line each."""
        indices = near_times(times, self._labels, self.file.where)
        note = rounding_of(times, self._labels[indices], self.file.where)
        return [] if note is None else [note]

    def problems(self, times: np.ndarray, names: Sequence[str]) -> list[str]:
        """Lists what is missing at some times, one line each."""
        labels = self._labels
        missing = times[near_times(times, labels, self.file.where) < 0]
        if not len(missing):
            return []
        return [
            f"{self.file.where} lacks {len(missing)} of {len(times)} times, the first "
            f"is {str(missing[0])[:16]}; it has {len(labels)} from "
            f"{str(labels.min())[:16]} to {str(labels.max())[:16]}"
        ]

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        labels = near_times(np.array([time]), self._labels, self.file.where)
        return self.file.channels({self.time: int(labels[0])}, selection)

    @cached_property
    def _labels(self) -> np.ndarray:
        return to_labels(self.file.dataset[self.time].values, self.file.where)


@dataclass(frozen=True, eq=False)
class DataReference:
    """The predicted variables of a data section."""

    where: str  # description of the section
    opened: OpenedData
    names: Mapping[str, str]
    moved: frozenset[str]

    @property
    def table(self) -> Variables:
        grid = self.opened.rows_and_columns()
        if grid is None:
            raise ValueError(
                f"{self.where}: no file has latitudes and longitudes of rows"
            )
        return Variables(self.where, self._known, *grid)

    def notes(self, times: np.ndarray) -> list[str]:
        notes = self.opened.notes()
        if self.moved:
            names = (variable_of(self.names.get(key, key)) for key in self.moved)
            notes.append(
                f"{self.where}: {', '.join(sorted(names))} are on other levels than "
                "the forecasts, to which hybrid_level_interp brings them, and are not "
                "compared; --truth names data on the levels of the model"
            )
        return notes

    def problems(self, times: np.ndarray, names: Sequence[str]) -> list[str]:
        opened, lines = self._only(names), list[str | None]()
        for name, source in opened.sources.items():
            labels = opened.clocks[name].input_times(times)[..., -1]
            kinds = source.config.variables.by_type
            lines += [opened.missing(name, kind, labels) for kind in kinds]
        return [f"{self.where}: {line}" for line in lines if line is not None]

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        fields = by_key(
            self._only([*selection]).read(
                FIELD_TYPES, lambda _, clock: clock.input_times(time)[-1:]
            )
        )
        arrays = []
        for name, levels in selection.items():
            array = fields[self._known[name].key][:, 0]
            arrays.append(array[[*levels]] if levels else array)
        return np.concatenate(arrays).astype(np.float32, copy=False)

    @cached_property
    def _known(self) -> dict[str, Variable]:
        """Name -> variable, from the first source that has it."""
        by_name: dict[str, Variable] = {}
        for source in self.opened.sources.values():
            units, stored = source.units(), source.axes().levels
            listed = source.config.level_values or stored or range(source.num_levels)
            about = {"units": getattr(stored, "unit", "")}
            levels, level_units = labeled_levels(listed, about)
            for kind in source.config.variables.by_type:
                for dims, variable in variables_of(source.config, kind):
                    key = field_key(source.name, kind, dims, variable)
                    if key in self.moved:
                        continue
                    described = Variable(key, units=units.get(key, ("",))[0])
                    if dims == "3d":
                        described = replace(
                            described, levels=levels, level_units=level_units
                        )
                    by_name.setdefault(variable_of(self.names.get(key, key)), described)
        return by_name

    def _only(self, names: Sequence[str]) -> OpenedData:
        """The data, restricted to some variables."""
        keys = {self._known[name].key for name in names}
        chosen: dict[str, Any] = {}
        for name, source in self.opened.sources.items():
            fields: dict[str, Any] = {}
            for kind, section in source.config.variables.by_type.items():
                by_dims = {
                    f"vars_{dims.upper()}": tuple(
                        v
                        for v in getattr(section, f"vars_{dims.upper()}")
                        if f"{name}/{kind}/{dims}/{v}" in keys
                    )
                    for dims in ("3d", "2d")
                }
                reduced = section.model_copy(update=by_dims)
                fields[kind] = reduced if any(by_dims.values()) else None
            variables = source.config.variables.model_copy(update=fields)
            if variables.by_type:
                config = source.config.model_copy(update={"variables": variables})
                chosen[name] = replace(source, config=config)  # type: ignore[type-var]
        return replace(self.opened, sources=chosen)


# A truth.
Reference = FileReference | DataReference


def open_truth(
    truth: str | NamedData, times: np.ndarray, open_files: OpenFiles | None = None
) -> Reference:
    """Opens the truth without reading fields."""
    files = open_files or OpenFiles()
    if isinstance(truth, NamedData):
        return open_reference(truth, "the data section", times, files)
    path = os.path.expandvars(truth)
    if Path(path).suffix in (".yml", ".yaml"):
        raw = read_yaml(path)
        if not isinstance(raw.get("data"), Mapping):
            raise ValueError(f"--truth: {path} has no data section")
        register_objects(raw, source=path)
        data = parse(InferenceDataConfig, raw["data"], "data", source=path)
        preblocks = parse(
            PreblocksConfig, raw.get("preblocks") or {}, "preblocks", source=path
        )
        return open_reference(NamedData.before(preblocks, data), path, times, files)
    dataset = open_dataset(path, "--truth", files)
    dims = [name for name in TIMES if name in dataset.dims]
    if not dims:
        raise ValueError(
            f"--truth: {path} has no dim {' or '.join(TIMES)}; it has "
            f"{', '.join(map(str, dataset.dims))}"
        )
    time = dims[0]
    return FileReference(GridFile(path, dataset, (time,), (time,)), time)


def open_dataset(path: str, option: str, open_files: OpenFiles) -> Any:
    """Opens the data set of a path given by an option."""
    if "://" not in path and not Path(path).exists():
        raise FileNotFoundError(f"{option}: {path} does not exist")
    return open_files.dataset(path)


def open_reference(
    named: NamedData, origin: str, times: np.ndarray, open_files: OpenFiles
) -> DataReference:
    """Opens the predicted variables of a data section."""
    data = named.data
    first, last = (pd.Timestamp(time) for time in (times.min(), times.max()))
    sources = {}
    for name, source in data.source.items():
        fields = {
            kind: field if kind in OUTPUT_TYPES else None
            for kind, field in source.variables.by_type.items()
        }
        variables = source.variables.model_copy(update=fields)
        if variables.by_type:
            changes = {"variables": variables, "history_len": None}
            sources[name] = source.model_copy(update=changes)
    changes = {
        "start_datetime": str(first),
        "end_datetime": str(last + data.time_step),
        "date_ranges": None,
        "history_len": 1,
        "forecast_len": 1,
        "source": sources,
    }
    opened = open_data(data.model_copy(update=changes), open_files)
    return DataReference(origin, opened, named.names, named.moved)
