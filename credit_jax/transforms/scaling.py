"""`bridgescaler_transform`: applies fitted scalers, before and after the model.

A file of scalers has two sides, "input" and "target", as samples have. The preblock
scales these entries of the tree by their own side; the postblock scales one entry that
is made of predictions, or of the target, by the side of the target.

Quantile scalers are distribution functions of t-digests: the exact transform
interpolates the cumulative weights of a digest's centroids. With `fast_transform` it is
a monotone cubic through knots of the exact transform.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special
from jaxtyping import Float, Shaped
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
from credit_jax.physics.arrays import namespace
from credit_jax.transforms.base import (
    DataType,
    FieldTree,
    LevelFile,
    OfVariables,
    OutputBlock,
    Reach,
    StepContext,
    Transform,
    TreeSchema,
    Variables,
    change_entry,
    postblock,
    preblock,
    selects,
)
from credit_jax.transforms.pointwise import standardize
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

LevelFields = Shaped[Any, "batch level time lat lon"]
Knots2d = Float[np.ndarray, "channel knot"]


class Digest(NamedTuple):
    """The digests of n channels, padded to k centroids, as numpy or JAX arrays."""

    mean: Any  # (n, k) means of the centroids, increasing; padded with inf
    weight: Any  # (n, k) weights of the centroids; padded with 0
    merged: Any  # (n, k) sum of the weights before a centroid, plus half of its weight
    total: Any  # (n,) sum of all weights
    low: Any  # (n,) smallest value
    high: Any  # (n,) largest value
    count: Any  # (n,) number of centroids without padding


class Knots(NamedTuple):
    """Knots of n channels, with m knots each, as numpy or JAX arrays."""

    x: Any  # (n, m) values, increasing
    z: Any  # (n, m) transformed values, increasing
    slope: Any  # (n, m) dz/dx
    inverse_slope: Any  # (n, m) dx/dz


def scale_quantiles(
    scaler: QuantileScaler,
    x: LevelFields,
    method: str,
    *,
    per_point: bool,
    grid: tuple[int, int],
    rows: Callable[[np.ndarray], Any],
) -> LevelFields:
    """Transforms a field (batch, level, time, lat, lon) to a distribution, or back."""
    # Channels are levels, or grid points of `grid`, of which `rows` selects those of
    # this shard, with ones in padding rows.
    # Differs from CREDIT: sums of weights are rounded once.
    dim = 1 if not scaler.channels_last else x.ndim - 1
    if per_point:
        flat = x.reshape(x.shape[0], -1).T
    else:
        flat = namespace(x).moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    expected = grid[0] * grid[1] if per_point else x.shape[dim]
    if len(scaler.centroids) != expected:
        raise ValueError(
            f"a quantile scaler has {len(scaler.centroids)} channels, the field "
            f"{tuple(x.shape)} has {expected}; fit it again"
        )
    inverse = method == "inverse_transform"
    if scaler.fast_transform:
        parts = knots(scaler, np.dtype(x.dtype))
        function = partial(_evaluate, inverse)
    else:
        parts = digest(scaler, np.dtype(x.dtype))
        function = partial(_inverse if inverse else _transform, scaler)
    if per_point:
        full = (part.reshape(*grid, *part.shape[1:]) for part in parts)
        arrays = (rows(part) for part in full)
        parts = type(parts)(*(part.reshape(-1, *part.shape[2:]) for part in arrays))
    new = _each_channel(function, parts, flat)
    if per_point:
        return new.T.reshape(x.shape)
    shape = (x.shape[dim], *(n for i, n in enumerate(x.shape) if i != dim))
    return namespace(new).moveaxis(new.reshape(shape), 0, dim)


@lru_cache(maxsize=256)
def digest(scaler: QuantileScaler, dtype: np.dtype) -> Digest:
    """Converts the digests of a scaler to arrays of a dtype."""
    counts = [len(centroids) for centroids in scaler.centroids]
    shape = len(counts), max(counts, default=1)
    mean, weight = np.full(shape, np.inf, dtype), np.zeros(shape, dtype)
    for i, (centroids, count) in enumerate(zip(scaler.centroids, counts, strict=True)):
        mean[i, :count], weight[i, :count] = centroids[:, 0], centroids[:, 1]
    summed = np.cumsum(weight, axis=1, dtype=np.float64).astype(dtype)
    return Digest(
        mean,
        weight,
        summed - weight / dtype.type(2),
        weight.sum(axis=1, dtype=np.float64).astype(dtype),
        scaler.minimum.astype(dtype),
        scaler.maximum.astype(dtype),
        np.asarray(counts, np.int32),
    )


def _transform(scaler: QuantileScaler, channel_digest: Digest, x: Any) -> Any:
    xp, special = namespace(x), _special(x)
    mean, weight, merged, total, low, high, count = channel_digest
    size, last = mean.shape[0], xp.maximum(count - 1, 0)
    left, right = (xp.searchsorted(mean, x, side=side) for side in ("left", "right"))
    first, end = mean[0], mean[last]
    previous = merged[0] / 2 * (x - low) / _safe(xp, first - low) / total
    after = 1 - weight[last] / 2 * (high - x) / _safe(xp, high - end) / total
    at = merged[xp.minimum(right, last)] / total
    i = xp.minimum(xp.clip(left, 1, None), xp.clip(last, 1, None))
    i = xp.clip(i, None, max(size - 1, 0))
    step = (weight[i - 1] + weight[i]) / 2
    inside = step * (x - mean[i - 1]) / _safe(xp, mean[i] - mean[i - 1])
    inside = (merged[i - 1] + inside) / total
    cdf = xp.where(mean[xp.minimum(left, last)] == x, at, inside)
    cdf = xp.where(left >= count, after, cdf)
    cdf = xp.where(x < first, previous, cdf)
    cdf = xp.where(x >= high, 1.0, xp.where(x <= low, 0.0, cdf))
    ramp = (x - low) / _safe(xp, high - low)
    ramp = xp.where(high - low < xp.finfo(x.dtype).eps, 0.5, ramp)
    ramp = xp.where(x < low, 0.0, xp.where(x > high, 1.0, ramp))
    cdf = xp.where(count <= 1, ramp, cdf)
    share = xp.clip(
        xp.where(count == 0, xp.nan, cdf).astype(x.dtype),
        scaler.min_val,
        scaler.max_val,
    )
    if scaler.distribution == "normal":
        return special.ndtri(share)
    if scaler.distribution == "logistic":
        return special.logit(share)
    return share


def _inverse(scaler: QuantileScaler, channel_digest: Digest, z: Any) -> Any:
    special, share = _special(z), z
    if scaler.distribution == "normal":
        # torch's formula; at -5.2 in float32 it has only one digit, with which CREDIT's
        # weights were trained.
        share = (1 + special.erf(z / np.sqrt(2.0).item())) * 0.5
    elif scaler.distribution == "logistic":
        share = special.expit(z)
    return _quantile(channel_digest, share)


def _special(x: Any) -> Any:
    return scipy.special if namespace(x) is np else jax.scipy.special


def _quantile(channel_digest: Digest, share: Any) -> Any:
    """Quantile function of one digest."""
    xp = namespace(share)
    mean, _, merged, total, low, high, count = channel_digest
    last, target = xp.maximum(count - 1, 0), share * total
    right = xp.searchsorted(merged, target, side="left")
    i, j = xp.maximum(right - 1, 0), xp.minimum(right, last)
    at_start, at_end = right == 0, right >= count
    x0 = xp.where(at_start, 0.0, merged[i])
    y0 = xp.where(at_start, low, mean[i])
    x1 = xp.where(at_end, total, merged[j])
    y1 = xp.where(at_end, high, mean[j])
    width = x1 - x0
    value = y0 + (target - x0) * (y1 - y0) / xp.where(width == 0, 1e-9, width)
    value = xp.where(count <= 1, mean[0], value)
    value = xp.where(share <= 0, low, xp.where(share >= 1, high, value))
    return xp.where(count == 0, xp.nan, value).astype(share.dtype)


def _safe(xp: Any, width: Any) -> Any:
    return xp.where(width == 0, 1.0, width).astype(width.dtype)


def _each_channel(function: Callable[..., Any], parts: Any, x: Any) -> Any:
    """Applies `function(parts of a channel, x of the channel)` to every channel."""
    kind = type(parts)
    if namespace(x) is np:
        pairs = zip(zip(*parts, strict=True), x, strict=True)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.stack(
                [function(kind(*arrays), values) for arrays, values in pairs]
            )
    return jax.vmap(function)(kind(*map(jnp.asarray, parts)), x)


@lru_cache(maxsize=256)
def knots(scaler: QuantileScaler, dtype: np.dtype) -> Knots:
    """Computes the knots of a scaler, evenly spaced in the transformed values."""
    low, high, count = scaler.min_val, scaler.max_val, scaler.num_knots
    special = scipy.special
    if scaler.distribution == "normal":
        z = np.linspace(special.ndtri(low), special.ndtri(high), count)
        shares = special.ndtr(z)
    elif scaler.distribution == "logistic":
        z = np.linspace(special.logit(low), special.logit(high), count)
        shares = special.expit(z)
    else:
        z = shares = np.linspace(low, high, count)
    digests = digest(scaler, np.dtype(np.float64))
    shares = np.clip(shares, low, high)
    of_channels = zip(*digests, strict=True)
    x = np.stack([_quantile(Digest(*arrays), shares) for arrays in of_channels])
    x = np.maximum.accumulate(x, axis=1)
    ties = np.diff(x, axis=1) <= 0
    x[:, 1:][ties] = x[:, :-1][ties] + 1e-12
    z = np.broadcast_to(z, x.shape)
    arrays = x, z, slopes(x, z), slopes(z, x)
    return Knots(*(part.astype(dtype) for part in arrays))


def slopes(x: Knots2d, y: Knots2d) -> Knots2d:
    """Slopes dy/dx at the knots, as scipy's PchipInterpolator (Fritsch and Carlson)."""
    slope = np.zeros_like(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = np.diff(x, axis=1)
        delta = np.diff(y, axis=1) / h
        after, previous = 2 * h[:, 1:] + h[:, :-1], h[:, 1:] + 2 * h[:, :-1]
        mean = (after + previous) / (after / delta[:, :-1] + previous / delta[:, 1:])
        slope[:, 1:-1] = np.where(delta[:, :-1] * delta[:, 1:] > 0, mean, 0.0)
        slope[:, 0] = _edge(h[:, 0], h[:, 1], delta[:, 0], delta[:, 1])
        slope[:, -1] = _edge(h[:, -1], h[:, -2], delta[:, -1], delta[:, -2])
    return slope


def _edge(h0: Any, h1: Any, d0: Any, d1: Any) -> Any:
    slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
    slope = np.where(np.sign(slope) != np.sign(d0), 0.0, slope)
    steep = (np.sign(d0) != np.sign(d1)) & (np.abs(slope) > 3 * np.abs(d0))
    return np.where(steep, 3 * d0, slope)


def _evaluate(inverse: bool, curve: Knots, x: Any) -> Any:
    """Cubic Hermite interpolation between the knots around x; constant beyond them."""
    indices, values, slope = curve.x, curve.z, curve.slope
    if inverse:
        indices, values, slope = curve.z, curve.x, curve.inverse_slope
    xp = namespace(x)
    i = xp.clip(xp.searchsorted(indices, x, side="left"), 1, indices.shape[0] - 1)
    x0, x1, y0, y1 = indices[i - 1], indices[i], values[i - 1], values[i]
    h = x1 - x0
    t = (x - x0) / xp.where(h == 0, 1, h)
    t2 = t * t
    t3 = t2 * t
    y = (2 * t3 - 3 * t2 + 1) * y0 + (t3 - 2 * t2 + t) * h * slope[i - 1]
    y = y + (-2 * t3 + 3 * t2) * y1 + (t3 - t2) * h * slope[i]
    y = xp.where(x <= indices[0], values[0], y)
    return xp.where(x >= indices[-1], values[-1], y)


Method: TypeAlias = Literal["transform", "inverse_transform"]
INVERSE: Mapping[Method, Method] = {
    "transform": "inverse_transform",
    "inverse_transform": "transform",
}


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
    """Transforms a field (batch, level, time, lat, lon), or inverts the transform."""
    # A channel of the scaler is a level, a longitude for a scaler with channels last,
    # or a grid point. JAX arrays have the dtype of x, numpy arrays the promoted one.
    rows_of_grid = x.shape[-2] if context is None else context.reducer.rows.size
    grid = rows_of_grid, x.shape[-1]
    if isinstance(scaler, QuantileScaler):
        rows = np.asarray if context is None else partial(context.local_rows, fill=1)
        return scale_quantiles(
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
    if namespace(x) is jnp:
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

    # Side of the file whose scalers are taken, for a preblock that of each entry.
    side: ClassVar[str | None] = "target"
    # (key) -> whether a variable is scaled by level.
    by_level: ClassVar[Callable[..., bool]]

    _scalers: ScalerDict = PrivateAttr(default_factory=dict)

    @property
    def sides(self) -> dict[str, str]:
        """Entry of the tree -> side of the file whose scalers it takes."""
        return {entry: self.side or entry for entry in self.entries()}

    def open(self) -> None:
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


class Scaling(OfScalers, OfVariables):
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
        return bool(self.spatial_variables) and selects(self.spatial_variables, key)

    def by_level(self, key: str) -> bool:
        return self.changes(key) and not self.is_spatial(key)

    @property
    def reach(self) -> Reach:  # type: ignore[override]
        """By point if scalers are by grid point or by longitude."""
        sides = map(by_key, self._scalers.values())
        by_point = any(s.channels_last for side in sides for s in side.values())
        return Reach.POINT if by_point or self.spatial_variables else Reach.CHANNEL

    @property
    def needs_host(self) -> bool:  # type: ignore[override]
        """Whether scalers are quantiles, whose tails need float64."""
        sides = map(by_key, self._scalers.values())
        return any(isinstance(s, QuantileScaler) for x in sides for s in x.values())

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
        return self._scaled(tree, self.method, context)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        return self._scaled(tree, INVERSE[self.method], context)

    def _scaled(
        self, tree: FieldTree, method: Method, context: StepContext
    ) -> dict[str, Any]:
        # Forecasts have no target, and later steps of a sample no input.
        for entry in self.entries(tree):

            def change(key: str, x: Any, side: str = self.sides[entry]) -> Any:
                if not self._selects(key):
                    return x
                scaler = self.scalers_of(side, [key])[key]
                options = {"per_point": self.is_spatial(key), "context": context}
                with errors_of(self.scaler_path, key):
                    return scale(scaler, x, method, **options)

            tree = change_entry(tree, change, entry)
        return dict(tree)

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
        channels_last: whether a channel is a longitude, as it is by default in CREDIT
            2026.2.0, or a level.
    """

    channels_last: bool = False


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
class ScalerPreblock(Scaling, Fitted):  # type: ignore[misc]
    """Applies fitted scalers to input and target.

    Attributes:
        method: "transform" or "inverse_transform".
        scaler_type: type of the scalers that `credit-jax preprocess` fits.
        scaler_params: arguments of these scalers.
        data_types: entries to scale; null is both.
    """

    undone_by: ClassVar = "bridgescaler_transform"
    side: ClassVar = None

    method: Method = "transform"
    scaler_type: Literal["standard", "quantile", "minmax"] = "standard"
    scaler_params: dict[str, Any] | None = None
    data_types: tuple[DataType, ...] | None = None

    @property
    def params(self) -> AffineParams:
        """Validated `scaler_params`."""
        kind = QuantileParams if self.in_order else AffineParams
        return parse(kind, self.scaler_params or {}, "args.scaler_params")

    @property
    def in_order(self) -> bool:  # type: ignore[override]
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
class ScalerPostblock(OutputBlock, Scaling):  # type: ignore[misc]
    """Applies fitted scalers to what is predicted, by default backwards.

    Attributes:
        method: "inverse_transform" or "transform".
    """

    method: Method = "inverse_transform"
