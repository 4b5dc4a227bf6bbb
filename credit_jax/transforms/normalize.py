"""`era5_normalizer`: (x - mean) / std by variable and level, and its inverse.

CREDIT has no such postblock: its forecasts of several steps normalize fields twice.
gen1 configs, whose forecasts feed back normalized fields without change, are converted
to configs with this block.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from credit_jax.config import StrictModel
from credit_jax.io.anemoi import is_anemoi, open_anemoi_store
from credit_jax.io.open_files import opened
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.axes import level_values
from credit_jax.named_fields.coordinates import (
    GridCoordinates,
    LevelValues,
    as_values,
    counts,
    places_of,
    take_places,
)
from credit_jax.named_fields.units import text_of
from credit_jax.transforms.base import (
    FieldTree,
    LevelFile,
    Transform,
    TreeSchema,
    change_entry,
    map_fields,
    variable_of,
)
from credit_jax.transforms.pointwise import standardize

SMALLEST_STD = 1e-12  # CREDIT's floor of the divisor


class NormalizerArgs(StrictModel):
    """`(x - mean) / std` by variable and level.

    Attributes:
        mean_path: NetCDF file with the mean of each variable: (level,) for 3-D
            variables, () for 2-D ones; or a store of anemoi-datasets, which has both.
        std_path: NetCDF file with the standard deviations, in the same form.
        levels: levels to take from these files, counted from 1; null takes all.
    """

    mean_path: str
    std_path: str
    levels: tuple[int, ...] | None = None


class DenormalizerArgs(NormalizerArgs):
    """`x * std + mean` by variable and level; CREDIT has no such postblock.

    Attributes:
        key: entry to change.
    """

    key: str = "y_processed"


@dataclasses.dataclass(frozen=True)
class Normalizer(Transform):
    """Computes (x - mean) / max(std, 1e-12) for the variables that both files have.

    Other variables are not changed, as in CREDIT.

    Attributes:
        mean: variable -> () or (level,) float32 mean, in the variable's unit.
        std: variable -> () or (level,) float32 standard deviation.
        paths: paths of the files, for errors.
        units: variable -> unit in the file of means.
        levels: variable -> values of its levels in each file, with the file's path; a
            variable without such values is matched by position.
        places: key -> positions of its levels in the files, where they are not those of
            the data, see `at`.
    """

    mean: Mapping[str, np.ndarray]
    std: Mapping[str, np.ndarray]
    paths: str
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, Sequence[tuple[str, LevelValues]]] = dataclasses.field(
        default_factory=dict
    )
    places: Mapping[str, Sequence[np.ndarray | None]] = dataclasses.field(
        default_factory=dict
    )
    by_field: ClassVar = True
    is_scaling: ClassVar = True

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`; those without values of levels."""
        bare = {name for name in self.mean if name not in self.levels}
        files = [LevelFile(self.paths, lambda key: variable_of(key) in bare)]
        for name, both in self.levels.items():
            for path, values in both:
                if counts(values):
                    files.append(
                        LevelFile(
                            path,
                            lambda key, name=name: variable_of(key) == name,
                            as_values(values),
                        )
                    )
        return tuple(files)

    def changes(self, key: str) -> bool:
        """Whether both files have the variable."""
        return variable_of(key) in self.mean

    def unit_of(self, key: str) -> tuple[str, str] | None:
        """Unit of the mean of a variable, and the files."""
        unit = self.units.get(variable_of(key))
        return None if unit is None else (unit, self.paths)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Normalizes all fields of the input and the target.

        Raises:
            ValueError: the files have another number of levels.
        """
        return map_fields(tree, self.normalize, ("input", "target"))

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Converts all fields of the input and the target to physical units."""
        return map_fields(tree, self.denormalize, ("input", "target"))

    def normalize(
        self, key: str, array: Shaped[Any, "batch level time lat lon"]
    ) -> Shaped[Any, "batch level time lat lon"]:
        """Normalizes a field: (x - mean) / std."""
        if variable_of(key) not in self.mean:
            return array
        mean, std = self.statistics(key, array.shape[1])
        return standardize(array, _by_level(mean), _by_level(std))

    def denormalize(
        self, key: str, array: Shaped[Any, "batch level time lat lon"]
    ) -> Shaped[Any, "batch level time lat lon"]:
        """Converts a normalized field to physical units: x std + mean."""
        if variable_of(key) not in self.mean:
            return array
        mean, std = self.statistics(key, array.shape[1])
        return array * _by_level(std) + _by_level(mean)

    def statistics(
        self, key: str, num_levels: int
    ) -> tuple[Float[np.ndarray, " level"], Float[np.ndarray, " level"]]:
        """Mean and divisor of each level of a variable; 0 and 1 if not normalized.

        Raises:
            ValueError: the files have another number of levels.
        """
        name = variable_of(key)
        if name not in self.mean:
            return np.zeros(num_levels, np.float32), np.ones(num_levels, np.float32)
        of_mean, of_std = self.places.get(key, (None, None))
        mean = take_places(self.mean[name], of_mean, 0)
        std = np.maximum(take_places(self.std[name], of_std, 0), SMALLEST_STD)
        std = std.astype(np.float32)
        for values in (mean, std):
            if values.ndim > 1 or values.size not in (1, num_levels):
                raise ValueError(
                    f"{self.paths}: {name} has shape {values.shape}, but the data have "
                    f"{num_levels} level{'s' if num_levels > 1 else ''}; give one "
                    "value a level, or choose with `levels` (counted from 1)"
                )
        return tuple(np.broadcast_to(v.reshape(-1), (num_levels,)) for v in (mean, std))  # type: ignore[return-value]

    def check(self, schema: TreeSchema) -> None:
        """Checks that the statistics fit the levels of the variables.

        Raises:
            ValueError: the files have other levels.
        """
        located = self.at(schema)
        for groups in schema.values():
            for group in groups:
                located.statistics(group.var_key, group.n_levels)

    def at(self, schema: TreeSchema, grid: GridCoordinates | None = None) -> Normalizer:
        """Returns the block with the statistics of the levels of the data.

        Args:
            schema: the variables, with their levels.
            grid: not used; statistics have none.

        Raises:
            ValueError: a file has other levels; names both.
        """
        places: dict[str, Sequence[np.ndarray | None]] = {}
        for group in (group for groups in schema.values() for group in groups):
            known = self.levels.get(variable_of(group.var_key), ())
            if known and group.levels is not None:
                where = f"the data ({group.var_key})"
                places[group.var_key] = [
                    places_of(group.levels, levels, "level", path, where, some=True)
                    for path, levels in known
                ]
        moved = {
            k: pair for k, pair in places.items() if any(p is not None for p in pair)
        }
        if _listed(moved) == _listed(self.places):
            return self
        return dataclasses.replace(self, places=moved)


@dataclasses.dataclass(frozen=True)
class Denormalizer(Transform):
    """Computes y std + mean for the variables that both files have.

    Attributes:
        normalizer: the preblock.
        key: entry to change.
    """

    normalizer: Normalizer
    key: str = "y_processed"

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Converts the fields of the entry `key` to physical units."""
        change = self.normalizer.denormalize
        return change_entry(tree, change, self.key, "era5_normalizer")

    def changes(self, key: str) -> bool:
        """Whether both files have the variable."""
        return self.normalizer.changes(key)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        return self.normalizer.level_files

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> Denormalizer:
        """Returns the block with the statistics of the levels of the data."""
        normalizer = self.normalizer.at(schema, grid)
        if normalizer is self.normalizer:
            return self
        return dataclasses.replace(self, normalizer=normalizer)


def _listed(places: Mapping[str, Sequence[np.ndarray | None]]) -> dict[str, Any]:
    """Positions as lists, which can be compared."""
    return {
        key: [None if indices is None else indices.tolist() for indices in both]
        for key, both in places.items()
    }


def build_normalizer(args: NormalizerArgs) -> Normalizer:
    """Builds the block; reads both files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a value is not finite, a std is negative, or a level is missing.
    """
    mean, units, of_mean = _read(args.mean_path, "mean_path")
    std, _, of_std = _read(args.std_path, "std_path")
    shared = [name for name in mean if name in std]
    levels = {
        name: [
            (
                path,
                dataset[name]
                if args.levels is None
                else _levels(dataset[name], args.levels, name, path),
            )
            for dataset, path in ((of_mean, args.mean_path), (of_std, args.std_path))
        ]
        for name in shared
        if name in of_mean and name in of_std
    }
    chosen = {}
    for label, values, path in (
        ("mean", mean, args.mean_path),
        ("std", std, args.std_path),
    ):
        chosen[label] = {
            name: _levels(values[name], args.levels, name, path) for name in shared
        }
    negative = [name for name in shared if (chosen["std"][name] < 0).any()]
    if negative:
        raise ValueError(f"{args.std_path}: negative std of {', '.join(negative)}")
    paths = f"{args.mean_path} and {args.std_path}"
    return Normalizer(chosen["mean"], chosen["std"], paths, units, levels)


def build_denormalizer(args: DenormalizerArgs) -> Denormalizer:
    """Builds the block; reads both files. See `build_normalizer` for the errors."""
    return Denormalizer(build_normalizer(args), args.key)


def _opened(path: str, key: str) -> AbstractContextManager[xr.Dataset]:
    """A file, or the statistics of a store of anemoi-datasets."""
    if not is_anemoi(path):
        return opened(path)
    statistic = {"mean_path": "mean", "std_path": "stdev"}[key]
    return nullcontext(open_anemoi_store(path).statistics(statistic))


def _read(
    path: str, key: str
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, LevelValues]]:
    """Reads values, float32, units and levels by variable; a file may lack the last."""
    if not os.path.exists(path):
        folder = os.path.dirname(path) or "."
        entries = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
        hint = f"{folder!r} holds: {', '.join(entries[:8])}" if entries else ""
        raise FileNotFoundError(
            f"era5_normalizer {key}: no file {path!r}; "
            + (hint or f"the folder {folder!r} is empty or does not exist")
        )
    with _opened(path, key) as dataset:
        values = {
            str(name): np.asarray(variable.values, dtype=np.float32)
            for name, variable in dataset.data_vars.items()
        }
        units = {
            str(name): text_of(variable.attrs, "units")
            for name, variable in dataset.data_vars.items()
            if "units" in variable.attrs
        }
        levels = {
            str(name): level_values(dataset[variable.dims[0]], path)
            for name, variable in dataset.data_vars.items()
            if variable.ndim == 1
            and variable.dims[0] in dataset.coords
            and dataset[variable.dims[0]].dtype.kind in "iuf"
        }
    for name, array in values.items():
        if not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise ValueError(
                f"era5_normalizer {key}: {path} has {bad} of {array.size} values that "
                f"are not finite in {name!r}; recompute it"
            )
    return values, units, levels


def _levels(values: Any, levels: Sequence[int] | None, name: str, path: str) -> Any:
    if levels is None or np.ndim(values) != 1 or np.size(values) == 1:
        return values
    count = len(values)
    outside = [level for level in levels if not 1 <= level <= count]
    if outside:
        raise ValueError(
            f"{path}: {name} has levels 1 to {count}, but `levels` asks for {outside}"
        )
    return values.take([level - 1 for level in levels])


def _by_level(
    values: Float[np.ndarray, " level"],
) -> Float[np.ndarray, "1 level 1 1 1"]:
    return np.asarray(values).reshape(1, -1, 1, 1, 1)
