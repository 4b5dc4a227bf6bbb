"""`bridgescaler_transform`: applies fitted scalers, before and after the model.

A file of scalers has two sides, "input" and "target", as samples have. The preblock
scales these entries of the tree by their own side; the postblock scales one entry that
is made of predictions, or of the target, by the side of the target.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped
from pydantic import Field, PrivateAttr

from credit_jax.config import StrictModel, parse
from credit_jax.config.components import FilePath
from credit_jax.config.messages import counted
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import read_scalers
from credit_jax.named_fields.bridgescaler import (
    DeepStandardScaler,
    MinMaxScaler,
    QuantileScaler,
    Scaler,
    ScalerDict,
    levels_of,
    take_channels,
    write_scalers,
)
from credit_jax.named_fields.coordinates import GridCoordinates, indices_of
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.transforms import quantile
from credit_jax.transforms.base import (
    DataType,
    FieldTree,
    LevelFile,
    OfVariables,
    OutputBlock,
    Reach,
    Selection,
    StepContext,
    Transform,
    TreeSchema,
    Variables,
    change_entry,
    postblock,
    preblock,
)
from credit_jax.transforms.pointwise import is_numpy, standardize
from credit_jax.transforms.statistics import (
    Collected,
    Digests,
    Extremes,
    Fitted,
    MeanAndVariance,
    Statistics,
    VariableFacts,
    map_leaves,
)

Method: TypeAlias = Literal["transform", "inverse_transform"]
INVERSE: Mapping[Method, Method] = {
    "transform": "inverse_transform",
    "inverse_transform": "transform",
}
LevelFields = Shaped[Any, "batch level time lat lon"]


@lru_cache(maxsize=8)
def _read(path: str, changed: int) -> dict[str, dict[str, dict[str, Scaler]]]:
    """The scalers of a file, cached until it changes."""
    del changed  # part of the cache's key
    return read_scalers(path)


def scale(
    scaler: Scaler,
    x: LevelFields,
    method: Method,
    *,
    per_point: bool = False,
    context: StepContext = None,
) -> LevelFields:
    """Transforms a field, or inverts the transform.

    Args:
        scaler: the scaler of the variable.
        x: (batch, level, time, lat, lon), numpy or JAX.
        method: "transform" or "inverse_transform".
        per_point: whether a channel of the scaler is a grid point; else it is a level,
            or a longitude for a scaler with channels last.
        context: context of a traced step; None on the host.

    Returns:
        The field, in the promoted dtype of x and the scaler for numpy arrays, and in
        the dtype of x for JAX arrays.

    Raises:
        ValueError: the scaler has another number of channels than the field.
    """
    rows_of_grid = x.shape[-2] if context is None else context.reducer.rows.size
    grid = rows_of_grid, x.shape[-1]
    if isinstance(scaler, QuantileScaler):
        rows = np.asarray if context is None else partial(context.local_rows, fill=1)
        return quantile.scale(
            scaler, x, method, per_point=per_point, grid=grid, rows=rows
        )
    count, last = num_channels(scaler), scaler.channels_last
    expected = grid[0] * grid[1] if per_point else x.shape[-1 if last else 1]
    if count != expected:
        subject = "grid points" if per_point else "longitudes" if last else "levels"
        raise ValueError(
            f"the scaler has {count} channels, the field {tuple(x.shape)} has "
            f"{expected} {subject}; fit it again with scaler_params: {{channels_last: "
            "false}, or see spatial_variables"
        )
    shape = grid if per_point else (count,) if last else (1, count, 1, 1, 1)
    shift, factor = (part.reshape(shape) for part in _affine(scaler))
    local_rows = context.local_rows if per_point and context is not None else None
    if method == "transform":
        with np.errstate(divide="ignore", invalid="ignore"):
            return standardize(x, shift, factor, local_rows)
    if local_rows is not None:
        shift, factor = local_rows(shift), local_rows(factor, fill=1)
    if not is_numpy(x):
        shift, factor = (
            jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)
            for value in (shift, factor)
        )
    return x * factor + shift


def num_channels(scaler: Scaler) -> int:
    """Number of channels of a scaler."""
    if isinstance(scaler, QuantileScaler):
        return len(scaler.centroids)
    return _affine(scaler)[0].size


def _affine(scaler: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shift and factor, (channel,) each: transformed = (x - shift) / factor."""
    if isinstance(scaler, MinMaxScaler):
        return scaler.minimum, scaler.maximum - scaler.minimum
    if isinstance(scaler, DeepStandardScaler):
        return scaler.mean, scaler.deviation
    return scaler.mean, np.sqrt(scaler.variance)


class OfScalers(Transform):
    """A block with fitted scalers of a file, {side: {source: {key: scaler}}}."""

    scaler_path: FilePath | None = None

    _scalers: ScalerDict = PrivateAttr(default_factory=dict)

    @property
    def sides(self) -> dict[str, str]:
        """Entry of the tree -> side of the file whose scalers it takes."""
        raise NotImplementedError

    def by_level(self, key: str) -> bool:
        """Whether a variable is scaled by level."""
        raise NotImplementedError

    def open(self) -> None:
        """Reads the scalers."""
        path = os.path.expandvars(str(self.scaler_path))
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"scaler_path: no file {path!r}; `credit-jax preprocess --config FILE` "
                "fits the scalers of a config and writes it"
            )
        scalers = _read(path, os.stat(path).st_mtime_ns)
        sides = set(self.sides.values())
        if not isinstance(self, ScalerPreblock):
            lacking = sides - set(scalers)
            if lacking:
                raise ValueError(
                    f"scaler_path: {self.scaler_path} has no scalers of the target, "
                    f"only of {', '.join(scalers) or 'nothing'}; fit them with the "
                    "target, too"
                )
            scalers = {side: scalers[side] for side in sides}
        self._scalers = scalers

    def scalers_of(self, side: str, keys: Sequence[str]) -> dict[str, Scaler]:
        """Returns the scalers of variables."""
        scalers = by_key(self._scalers.get(side, {}))
        missing = [key for key in keys if key not in scalers]
        if missing:
            raise ValueError(
                f"there is no scaler of {', '.join(missing)} in the {side} scalers of "
                f"{self.scaler_path}; there are: {', '.join(scalers) or 'none'}. Fit "
                "them again, or name those that are to be scaled in `variables`"
            )
        return {key: scalers[key] for key in keys}

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        files = []
        for side in self.sides.values():
            bare = {
                key
                for key, scaler in by_key(self._scalers.get(side, {})).items()
                if levels_of(scaler) is None
                and not scaler.channels_last
                and self.by_level(key)
            }
            files.append(LevelFile(str(self.scaler_path), bare.__contains__))
        return tuple(files)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> OfScalers:
        """Returns the block with its channels in the order of the data's levels."""
        located: ScalerDict = dict(self._scalers)
        for side, sources in self._scalers.items():
            scalers, ordered = by_key(sources), dict[str, Scaler]()
            for group in schema.get(side, ()):
                key, scaler = group.var_key, scalers.get(group.var_key)
                if scaler is None or scaler.channels_last or not self.by_level(key):
                    continue
                names = "level", f"{self.scaler_path}: {key}", "the data"
                order = indices_of(group.levels, levels_of(scaler), *names, some=True)
                if order is not None:
                    ordered[key] = take_channels(scaler, order)
            if ordered:
                located[side] = by_source(scalers | ordered)
        equal = all(located[side] is self._scalers[side] for side in located)
        return self if equal else self.with_values(_scalers=located)


class _Scaling(OfScalers, OfVariables):
    """Scales fields by the scalers of their entry, source and key.

    Attributes:
        scaler_path: JSON file of fitted scalers.
        spatial_variables: selected variables that have a scaler for each grid point
            instead of each level.

    Differs from CREDIT: the file need not have sources of which no variable is scaled.
    """

    is_scaling: ClassVar = True

    scaler_path: FilePath  # type: ignore[override]
    spatial_variables: Variables = ()
    method: Method

    def is_spatial(self, key: str) -> bool:
        """Whether a variable has a scaler for each grid point."""
        return bool(self.spatial_variables) and Selection(self.spatial_variables)(key)

    def by_level(self, key: str) -> bool:
        return self.changes(key) and not self.is_spatial(key)

    @property
    def _every_scaler(self) -> list[Scaler]:
        return [s for side in self._scalers.values() for s in by_key(side).values()]

    @property
    def reach(self) -> Reach:  # type: ignore[override]
        """By point if scalers are by grid point or by longitude."""
        by_point = any(scaler.channels_last for scaler in self._every_scaler)
        return Reach.POINT if by_point or self.spatial_variables else Reach.CHANNEL

    @property
    def needs_host(self) -> bool:  # type: ignore[override]
        """Whether scalers are quantiles, whose tails need float64."""
        return any(isinstance(each, QuantileScaler) for each in self._every_scaler)

    def check(self, schema: TreeSchema) -> None:
        """Checks that the selected variables have scalers that fit their levels."""
        for side in self.sides.values():
            levels = {g.var_key: g.n_levels for g in schema[side]}
            keys = [key for key in levels if self._selects(key)]
            for key, scaler in self.scalers_of(side, keys).items():
                count, n, text = num_channels(scaler), levels[key], ""
                if self.is_spatial(key) and n > 1:
                    text = (
                        f"it stands in spatial_variables and has {n} levels; scaling "
                        "by grid point takes variables of one level"
                    )
                elif self.by_level(key) and not scaler.channels_last and count != n:
                    text = (
                        f"the scaler has {count} channels, the data have "
                        f"{counted(n, 'level')}; fit it again, or name the variable in "
                        "spatial_variables if its channels are grid points"
                    )
                if text:
                    raise ValueError(f"{self.scaler_path}: {key}: {text}")

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Scales the selected fields."""
        return self._scaled(tree, self.method, context)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Inverts the scaling."""
        return self._scaled(tree, INVERSE[self.method], context)

    def _scaled(
        self, tree: FieldTree, method: Method, context: StepContext
    ) -> dict[str, Any]:
        scaled = dict(tree)
        # Forecasts have no target, and later steps of a sample no input.
        for entry in self.entries(tree):

            def change(key: str, x: Any, side: str = self.sides[entry]) -> Any:
                if not self._selects(key):
                    return x
                scaler = self.scalers_of(side, [key])[key]
                options = {"per_point": self.is_spatial(key), "context": context}
                with errors_of(self.scaler_path, key):
                    return scale(scaler, x, method, **options)

            scaled = change_entry(scaled, change, entry)
        return scaled

    def _selects(self, key: str) -> bool:
        if self.is_spatial(key) and not self.changes(key):
            raise ValueError(
                f"{key} stands in spatial_variables, but `variables` does not select "
                "it; add it there"
            )
        return self.changes(key)


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


@preblock("bridgescaler_transform")
class ScalerPreblock(_Scaling, Fitted):  # type: ignore[misc]
    """Applies fitted scalers to input and target.

    Attributes:
        method: "transform" or "inverse_transform".
        scaler_type: type of the scalers that `credit-jax preprocess` fits.
        scaler_params: arguments of these scalers.
        data_types: entries to scale; null is both.
    """

    undone_by: ClassVar = "bridgescaler_transform"

    method: Method = "transform"
    scaler_type: Literal["standard", "quantile", "minmax"] = "standard"
    scaler_params: dict[str, Any] | None = None
    data_types: tuple[DataType, ...] | None = None

    @property
    def sides(self) -> dict[str, str]:
        """Each entry has scalers of its own."""
        return {side: side for side in self.entries()}

    @property
    def params(self) -> AffineParams:
        """Validated `scaler_params`."""
        kind = QuantileParams if self.in_order else AffineParams
        return parse(kind, self.scaler_params or {}, "args.scaler_params")

    @property
    def fitted_files(self) -> tuple[Path, ...]:
        return (Path(os.path.expandvars(self.scaler_path)),)

    @property
    def in_order(self) -> bool:
        """See `Fitted`; true for t-digests."""
        return self.scaler_type == "quantile"

    def collect(self, tree: FieldTree) -> Collected:
        params = self.params

        def statistics(key: str, x: np.ndarray) -> Statistics:
            axis = -1 if params.channels_last else 1
            if self.is_spatial(key):
                if x.shape[1:3] != (1, 1):
                    raise ValueError(
                        f"args.spatial_variables: {key} has {x.shape[1]} levels and "
                        f"{x.shape[2]} times; scaling by grid point takes one of each"
                    )
                x, axis = x.reshape(len(x), -1), -1
            if isinstance(params, QuantileParams):
                return Digests.of(x, axis, params.compression)
            kind = MeanAndVariance if self.scaler_type == "standard" else Extremes
            return kind.of(x, axis)

        return {
            part: {
                source: {
                    k: statistics(k, x) for k, x in fields.items() if self.changes(k)
                }
                for source, fields in tree[part].items()
            }
            for part in self.entries()
        }

    def write(
        self, collected: Collected, paths: Sequence[Path], facts: VariableFacts
    ) -> None:
        """Writes bridgescaler's JSON file."""
        params = self.params.model_dump()

        def attributes(leaf: Statistics) -> dict[str, Any]:
            columns = list(range(len(leaf.count)))
            common = {"x_columns_": columns, "_fit": True, **params}
            return {**common, **leaf.attributes()}

        write_scalers(paths[0], map_leaves(attributes, collected))


@postblock("bridgescaler_transform")
class ScalerPostblock(OutputBlock, _Scaling):  # type: ignore[misc]
    """Applies fitted scalers to what is predicted, by default backwards.

    Attributes:
        method: "inverse_transform" or "transform".
    """

    method: Method = "inverse_transform"

    @property
    def sides(self) -> dict[str, str]:
        """What is predicted has the scalers of the target."""
        return {self.key: "target"}
