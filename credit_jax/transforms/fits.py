"""The fits of the blocks of a config: the statistics and the files of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os.path import expandvars
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xarray as xr
from pydantic import Field

from credit_jax.config import StrictModel, parse
from credit_jax.io.netcdf import write_netcdf
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.named_fields.coordinates import CoordinateValues, attributes_of
from credit_jax.transforms.base import FieldTree, variable_of
from credit_jax.transforms.normalize import NormalizerArgs
from credit_jax.transforms.scaler_blocks import ScalerPreArgs
from credit_jax.transforms.selection import Selection, Variables
from credit_jax.transforms.statistics import (
    Digests,
    Extremes,
    MeanAndVariance,
    Statistics,
)

# Statistics by entry of the batch, source and key, or by variable.
Collected: TypeAlias = Mapping[str, Any]


@runtime_checkable
class Fit(Protocol):
    """The fit of one block."""

    @property
    def path(self) -> str:
        """Dotted path of the block, such as "preblocks.per_step.scaler"."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the block, which are written."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether the result depends on the order and the size of batches."""
        ...

    @property
    def variables(self) -> Variables:
        """The `variables` argument of the block."""
        ...

    def collect(self, tree: FieldTree) -> Collected:
        """Computes the statistics of one batch, before the block is applied.

        Raises:
            ValueError: a variable cannot be fitted.
        """
        ...

    def write(self, collected: Collected, paths: tuple[Path, ...]) -> None:
        """Writes the files to `paths`, in the order of `files`."""
        ...


class AffineParams(StrictModel):
    """`scaler_params` of standard and minmax scalers.

    Attributes:
        channels_last: whether a channel is a longitude, as it is by default in CREDIT,
            or a level.
    """

    channels_last: bool = True


class QuantileParams(AffineParams):
    """`scaler_params` of quantile scalers; see bridgescaler's DQuantileScalerTensor.

    Attributes:
        compression: approximate number of centroids of a channel.
        distribution: distribution of the transformed values.
        min_val, max_val: bounds of the quantiles.
        compile: whether CREDIT compiles the transform; no effect in credit_jax.
        fast_transform: whether the transform interpolates between knots.
        n_knots: number of these knots.
    """

    compression: int | float = Field(250, gt=0)
    distribution: Literal["uniform", "normal", "logistic"] = "uniform"
    min_val: float = 0.0000001
    max_val: float = 0.9999999
    compile: bool = False
    fast_transform: bool = False
    n_knots: int = Field(256, ge=4)


@dataclass(frozen=True)
class ScalerFit:
    """Fits the scalers of a `bridgescaler_transform`.

    Attributes:
        path: see `Fit`.
        args: arguments of the block.
    """

    path: str
    args: ScalerPreArgs

    @cached_property
    def params(self) -> AffineParams:
        """Validated `scaler_params`.

        Raises:
            ConfigError: they are invalid for this type of scaler.
        """
        kind = QuantileParams if self.in_order else AffineParams
        where = f"{self.path}.args.scaler_params"
        return parse(kind, self.args.scaler_params or {}, where)

    @property
    def files(self) -> tuple[Path, ...]:
        """See `Fit.files`."""
        return (Path(expandvars(self.args.scaler_path)),)

    @property
    def in_order(self) -> bool:
        """See `Fit.in_order`; true for t-digests."""
        return self.args.scaler_type == "quantile"

    @property
    def variables(self) -> Variables:
        """See `Fit.variables`."""
        return self.args.variables

    def collect(self, tree: FieldTree) -> Collected:
        """See `Fit.collect`."""
        selected = Selection(self.args.variables)
        return {
            part: {
                source: {
                    key: self._of(key, x) for key, x in fields.items() if selected(key)
                }
                for source, fields in tree[part].items()
            }
            for part in self.args.data_types or ("input", "target")
        }

    def _of(self, key: str, x: np.ndarray) -> Statistics:
        axis = -1 if self.params.channels_last else 1
        if self.args.spatial_variables and Selection(self.args.spatial_variables)(key):
            if x.shape[1:3] != (1, 1):
                raise ValueError(
                    f"{self.path}.args.spatial_variables: {key} has {x.shape[1]} "
                    f"levels and {x.shape[2]} times; scaling by grid point takes one "
                    "of each"
                )
            x, axis = x.reshape(len(x), -1), -1
        if isinstance(self.params, QuantileParams):
            return Digests.of(x, axis, self.params.compression)
        kind = MeanAndVariance if self.args.scaler_type == "standard" else Extremes
        return kind.of(x, axis)

    def write(self, collected: Collected, paths: tuple[Path, ...]) -> None:
        """Writes bridgescaler's JSON file."""
        params = self.params.model_dump()

        def attributes(leaf: Statistics) -> dict[str, Any]:
            columns = list(range(len(leaf.count)))
            common = {"x_columns_": columns, "_fit": True, **params}
            return {**common, **leaf.attributes()}

        write_scalers(paths[0], map_leaves(attributes, collected))


@dataclass(frozen=True)
class NormalizerFit:
    """Fits the means and standard deviations of an `era5_normalizer`.

    They are fitted to the input, and for variables that are not in the input to the
    target.

    Attributes:
        path: see `Fit`.
        args: arguments of the block.
        units: known units of the variables, by name.
        level_values: known values of their levels, by name.
    """

    path: str
    args: NormalizerArgs
    units: Mapping[str, str] = field(default_factory=dict)
    level_values: Mapping[str, CoordinateValues] = field(default_factory=dict)

    in_order = False
    variables: Variables = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """See `Fit.files`."""
        paths = self.args.mean_path, self.args.std_path
        return tuple(Path(expandvars(path)) for path in paths)

    def collect(self, tree: FieldTree) -> Collected:
        """See `Fit.collect`."""
        fields: dict[str, tuple[str, Any]] = {}
        if "input" not in tree:
            raise ValueError(
                f"{self.path}: there are no variables left to fit to; put this block "
                "before that of type concat"
            )
        for part in ("input", "target"):
            pairs = [
                pair
                for source_fields in tree[part].values()
                for pair in source_fields.items()
            ]
            for key, x in pairs:
                known, _ = fields.setdefault(variable_of(key), (key, x))
                if known != key:
                    raise ValueError(
                        f"{self.path}: {known} and {key} have one name in "
                        f"{self.args.mean_path}; rename one of them before this block"
                    )
        return {name: MeanAndVariance.of(x, 1) for name, (_, x) in fields.items()}

    def write(self, collected: Collected, paths: tuple[Path, ...]) -> None:
        """Writes two NetCDF files; a deviation of 0 is written as 1."""
        for which, path in zip(("mean", "std"), paths, strict=True):
            arrays = {
                name: self._at(name, which, statistics)
                for name, statistics in collected.items()
            }
            attrs = {name: {"units": unit} for name, unit in self.units.items()}
            dims = self._dims(arrays)
            variables = {n: (dims[n], x, attrs.get(n, {})) for n, x in arrays.items()}
            coordinates = {
                dims[name][0]: (dims[name][0], np.array(levels), attributes_of(levels))
                for name, levels in self.level_values.items()
                if dims.get(name) and arrays[name].size == len(levels)
            }
            write_netcdf(xr.Dataset(variables, coordinates), path)

    def _dims(self, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
        """Dims of variables, by the values of their levels, or else by their number."""
        known: dict[tuple[int, CoordinateValues | None], str] = {}
        dims = {}
        for name, array in arrays.items():
            values = self.level_values.get(name)
            if not array.ndim or (values and len(values) != array.size):
                values = None  # positions of some levels, of which others are empty
            dim = f"level_{array.size}"
            if dim in known.values() and (array.size, values) not in known:
                dim = f"{dim}_{len(known)}"
            dim = known.setdefault((array.size, values), dim)
            dims[name] = (dim,) if array.ndim else ()
        return dims

    def _at(self, name: str, which: str, moments: MeanAndVariance) -> np.ndarray:
        """Means or deviations of a variable, at their indices in `levels`."""
        values = moments.mean
        if which == "std":
            values = np.sqrt(moments.variance)
            values = np.where(values > 0, values, 1.0)
        levels = self.args.levels
        if values.size == 1:
            return values.reshape(())
        if levels is None:
            return values
        if len(levels) != values.size:
            raise ValueError(
                f"{self.path}.args.levels: names {len(levels)} levels, but {name} has "
                f"{values.size} in the data"
            )
        whole = np.full(max(levels), 0.0 if which == "mean" else 1.0)
        whole[[level - 1 for level in levels]] = values
        return whole


def map_leaves(change: Any, nested: Collected) -> dict[str, Any]:
    """Applies `change` to the leaves of a nested dict."""
    return {
        key: map_leaves(change, value) if isinstance(value, Mapping) else change(value)
        for key, value in nested.items()
    }


def leaves(nested: Collected, *names: str) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a nested dict with their keys, joined by spaces."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *names, key)
        else:
            yield " ".join([*names, key]), value
