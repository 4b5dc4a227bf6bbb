"""`era5_normalizer`: (x - mean) / std by variable and level, and its inverse.

CREDIT has no such postblock: its forecasts of several steps normalize fields twice.
gen1 configs, whose forecasts feed back normalized fields without change, are converted
to configs with this block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped
from pydantic import PrivateAttr

from credit_jax.config.components import FilePath
from credit_jax.io.anemoi import is_anemoi, open_anemoi_store
from credit_jax.io.errors import nearest_files
from credit_jax.io.netcdf import write_netcdf
from credit_jax.io.open_files import opened
from credit_jax.named_fields.axes import level_values
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    LevelValues,
    as_values,
    attributes_of,
    counts,
    indices_of,
    take_indices,
)
from credit_jax.named_fields.tree import by_key
from credit_jax.named_fields.units import conversion, differ, text_of
from credit_jax.transforms import base, statistics
from credit_jax.transforms.base import FieldTree, StepContext, Transform, TreeSchema
from credit_jax.transforms.pointwise import standardize
from credit_jax.transforms.statistics import Collected, Fitted, MeanAndVariance

LevelFields = Shaped[Any, "batch level time lat lon"]

SMALLEST_STD = 1e-12  # CREDIT's floor of the divisor


class _Moments(Transform):
    """Mean and std of each variable and level, of files.

    Attributes:
        mean_path: NetCDF file with the mean of each variable: (level,) for 3-D
            variables, () for 2-D ones; or a store of anemoi-datasets, which has both.
        std_path: NetCDF file with the standard deviations, in the same form.
        levels: levels to take from these files, counted from 1; null takes all.
    """

    reach: ClassVar = base.Reach.CHANNEL

    mean_path: FilePath
    std_path: FilePath
    levels: tuple[int, ...] | None = None

    # Variable -> () or (level,) float32, in its unit, for variables of both files.
    _mean: Mapping[str, np.ndarray] = PrivateAttr()
    _std: Mapping[str, np.ndarray] = PrivateAttr()
    # Variable -> unit in the file of means, or else in that of deviations.
    _units: Mapping[str, str] = PrivateAttr()
    # Variable -> values of its levels in each file, with the file's path; a variable
    # without such values is matched by position.
    _level_values: Mapping[str, Sequence[tuple[str, LevelValues]]] = PrivateAttr()
    # Key -> positions of its levels in the files, where they are not those of the data.
    _indices: Mapping[str, Sequence[np.ndarray | None]] = PrivateAttr(
        default_factory=dict
    )

    def open(self) -> None:
        mean, units, of_mean = _read(self.mean_path, "mean_path")
        std, std_units, of_std = _read(self.std_path, "std_path")
        self._units = std_units | units
        shared = [name for name in mean if name in std]
        for name in (name for name in shared if name in units and name in std_units):
            change = conversion(std_units[name], units[name])
            if change is None and differ(std_units[name], units[name]):
                raise ValueError(
                    f"{self.std_path}: {name} is in {std_units[name]!r}, but its mean "
                    f"in {self.mean_path} in {units[name]!r}; bring both to one unit"
                )
            if change and change[0] != 1.0:  # a std has no offset, such as degC's to K
                std[name] = np.asarray(std[name] * np.float32(change[0]))
        means, stds = (self.mean_path, mean), (self.std_path, std)
        self._mean, self._std = (
            {name: self._chosen(values[name], name, path) for name in shared}
            for path, values in (means, stds)
        )
        both = (self.mean_path, of_mean), (self.std_path, of_std)
        self._level_values = {
            name: [(path, self._chosen(x[name], name, path)) for path, x in both]
            for name in shared
            if name in of_mean and name in of_std
        }
        negative = [name for name in shared if (self._std[name] < 0).any()]
        if negative:
            raise ValueError(f"{self.std_path}: negative std of {', '.join(negative)}")

    def _chosen(self, values: Any, name: str, path: str) -> Any:
        """Those of `levels`."""
        if self.levels is None or np.ndim(values) != 1 or np.size(values) == 1:
            return values
        count = len(values)
        outside = [level for level in self.levels if not 1 <= level <= count]
        if outside:
            raise ValueError(
                f"{path}: {name} has levels 1 to {count}, but `levels` asks for "
                f"{outside}"
            )
        return values.take([level - 1 for level in self.levels])

    @property
    def paths(self) -> str:
        """Both files, for messages."""
        return f"{self.mean_path} and {self.std_path}"

    def unit_of(self, key: str) -> str | None:
        """Unit of the mean of a variable, if it is known."""
        return self._units.get(base.variable_of(key))

    def changes(self, key: str) -> bool:
        """Whether both files have the variable."""
        return base.variable_of(key) in self._mean

    @property
    def level_files(self) -> tuple[base.LevelFile, ...]:
        """See `Transform`; those without values of levels."""
        bare = {name for name in self._mean if name not in self._level_values}
        files = [base.LevelFile(self.paths, lambda key: base.variable_of(key) in bare)]
        for name, both in self._level_values.items():
            selects = lambda key, name=name: base.variable_of(key) == name  # noqa: E731
            numbered = ((path, as_values(x)) for path, x in both if counts(x))
            files += [
                base.LevelFile(path, selects, values) for path, values in numbered
            ]
        return tuple(files)

    def check(self, schema: TreeSchema) -> None:
        """Checks that the statistics fit the levels of the variables."""
        located = self.at(schema)
        for groups in schema.values():
            for group in groups:
                located.statistics(group.var_key, group.n_levels)

    def at(self, schema: TreeSchema, grid: GridCoordinates | None = None) -> _Moments:
        """Returns the block with the statistics of the levels of the data."""
        moved: dict[str, Sequence[np.ndarray | None]] = {}
        for group in (group for groups in schema.values() for group in groups):
            values = self._level_values.get(group.variable, ())
            if group.levels is not None:
                name = f"the data ({group.var_key})"
                positions = [
                    indices_of(group.levels, levels, "level", path, name, some=True)
                    for path, levels in values
                ]
                if any(indices is not None for indices in positions):
                    moved[group.var_key] = positions
        if not moved and not self._indices:
            return self
        return self.with_values(_indices=moved)

    def normalize(self, key: str, array: LevelFields) -> LevelFields:
        """Normalizes a field: (x - mean) / std."""
        if not self.changes(key):
            return array
        mean, std = self._by_level(key, array)
        return standardize(array, mean, std)

    def denormalize(self, key: str, array: LevelFields) -> LevelFields:
        """Converts a normalized field to physical units: x std + mean."""
        if not self.changes(key):
            return array
        mean, std = self._by_level(key, array)
        return array * std + mean

    def _by_level(self, key: str, array: Any) -> Iterator[np.ndarray]:
        """Mean and divisor of a variable, to broadcast against its field."""
        moments = self.statistics(key, array.shape[1])
        return (np.reshape(m, (1, -1, 1, 1, 1)) for m in moments)

    def statistics(
        self, key: str, num_levels: int
    ) -> tuple[Float[np.ndarray, " level"], Float[np.ndarray, " level"]]:
        """Mean and divisor of each level of a variable; 0 and 1 if not normalized."""
        name = base.variable_of(key)
        if name not in self._mean:
            return np.zeros(num_levels, np.float32), np.ones(num_levels, np.float32)
        of_mean, of_std = self._indices.get(key, (None, None))
        mean = take_indices(self._mean[name], of_mean, 0)
        std = np.maximum(take_indices(self._std[name], of_std, 0), SMALLEST_STD)
        std = std.astype(np.float32)
        for values in (mean, std):
            if values.ndim > 1 or values.size not in (1, num_levels):
                raise ValueError(
                    f"{self.paths}: {name} has shape {values.shape}, but the data have "
                    f"{num_levels} level{'s' if num_levels > 1 else ''}; give one "
                    "value a level, or choose with `levels` (counted from 1)"
                )
        return tuple(np.broadcast_to(v.reshape(-1), (num_levels,)) for v in (mean, std))  # type: ignore[return-value]


@base.preblock("era5_normalizer")
class Normalizer(_Moments, Fitted):
    """`(x - mean) / std` by variable and level.

    The divisor is at least 1e-12. Variables that not both files have are not changed,
    as in CREDIT.
    """

    is_scaling: ClassVar = True
    undone_by: ClassVar = "era5_normalizer"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Normalizes all fields of the input and the target."""
        return base.map_fields(tree, self.normalize, ("input", "target"))

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Converts all fields of the input and the target to physical units."""
        return base.map_fields(tree, self.denormalize, ("input", "target"))

    def collect(self, tree: FieldTree) -> Collected:
        """Statistics of the input, and of the target's variables that it lacks."""
        fields: dict[str, tuple[str, Any]] = {}
        if "input" not in tree:
            raise ValueError(
                "there are no variables left to fit to; put this block before that of "
                "type concat"
            )
        for part in ("input", "target"):
            for key, x in by_key(tree[part]).items():
                names, _ = fields.setdefault(base.variable_of(key), (key, x))
                if names != key:
                    raise ValueError(
                        f"{names} and {key} have one name in {self.mean_path}; rename "
                        "one of them before this block"
                    )
        return {name: MeanAndVariance.of(x, 1) for name, (_, x) in fields.items()}

    def write(
        self,
        collected: Collected,
        paths: Sequence[Path],
        facts: statistics.VariableFacts,
    ) -> None:
        """Writes two NetCDF files; a deviation of 0 is written as 1."""
        for which, path in zip(("mean", "std"), paths, strict=True):
            arrays = {
                name: self._written(name, which, moments)
                for name, moments in collected.items()
            }
            attrs = {name: {"units": unit} for name, unit in facts.units.items()}
            # By the values of the levels of variables, or else by their number.
            dims: dict[str, tuple[str, ...]] = {}
            coordinate_of: dict[tuple[int, CoordinateValues | None], str] = {}
            for name, array in arrays.items():
                values = facts.levels.get(name)
                if not array.ndim or (values and len(values) != array.size):
                    values = None  # positions of some levels, of which others are empty
                dim, key = f"level_{array.size}", (array.size, values)
                if dim in coordinate_of.values() and key not in coordinate_of:
                    dim = f"{dim}_{len(coordinate_of)}"
                dim = coordinate_of.setdefault(key, dim)
                dims[name] = (dim,) if array.ndim else ()
            variables = {n: (dims[n], x, attrs.get(n, {})) for n, x in arrays.items()}
            coords = {
                dims[name][0]: (dims[name][0], np.array(levels), attributes_of(levels))
                for name, levels in facts.levels.items()
                if dims.get(name) and arrays[name].size == len(levels)
            }
            write_netcdf(xr.Dataset(variables, coords), path)

    def _written(self, name: str, which: str, moments: MeanAndVariance) -> np.ndarray:
        """Means or deviations of a variable, at their indices in `levels`."""
        values = moments.mean
        if which == "std":
            values = np.sqrt(moments.variance)
            values = np.where(values > 0, values, 1.0)
        if values.size == 1:
            return values.reshape(())
        if self.levels is None:
            return values
        if len(self.levels) != values.size:
            raise ValueError(
                f"args.levels: names {len(self.levels)} levels, but {name} has "
                f"{values.size} in the data"
            )
        every = np.full(max(self.levels), 0.0 if which == "mean" else 1.0)
        every[[level - 1 for level in self.levels]] = values
        return every


@base.postblock("era5_normalizer")
class Denormalizer(base.OutputBlock, _Moments):
    """`x * std + mean` by variable and level; CREDIT has no such postblock."""

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Converts the fields of the entry `key` to physical units."""
        return base.change_entry(tree, self.denormalize, self.key)


def _read(
    path: str, key: str
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, LevelValues]]:
    """Reads values, float32, units and levels by variable; a file may lack the last."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{key}: no file {path!r}; {nearest_files(path)}")
    if is_anemoi(path):
        statistic = {"mean_path": "mean", "std_path": "stdev"}[key]
        source = nullcontext(open_anemoi_store(path).statistics(statistic))
    else:
        source = opened(path)
    with source as dataset:
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
                f"{key}: {path} has {bad} of {array.size} values that "
                f"are not finite in {name!r}; recompute it"
            )
    return values, units, levels
