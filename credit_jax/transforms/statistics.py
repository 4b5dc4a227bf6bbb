"""Statistics of the channels of fields, which are merged over batches.

Every class computes the statistics of one array (`of`), merges two (`merged`), and
returns the attributes of bridgescaler's scaler (`attributes`). NaN is ignored.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import expandvars
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float, Shaped
from numpy.lib.recfunctions import structured_to_unstructured

from credit_jax.config.components import files_within
from credit_jax.io.atomic import new_file
from credit_jax.named_fields.bridgescaler import Attributes
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.transforms.base import Transform

PerChannel = Float[np.ndarray, " channel"]
AnyArray = Shaped[np.ndarray, "..."]
# Statistics by entry of the batch, source and key, or by variable.
Collected: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class MeanAndVariance:
    """Mean and variance, in float64."""

    count: PerChannel  # (channel,) number of values
    mean: PerChannel  # (channel,) mean; NaN without values
    squares: PerChannel  # (channel,) sum of squared deviations from the mean

    @classmethod
    def of(cls, x: AnyArray, axis: int) -> MeanAndVariance:
        """Computes the moments of an array whose channels are along `axis`."""
        if x.ndim == 5 and axis == 1:
            # Level by level, to use less memory.
            levels = [_moments(x[:, k].ravel()) for k in range(x.shape[1])]
            return cls(*np.array(levels, np.float64).T)
        axes = _others(x, axis)
        valid = ~np.isnan(x)
        count = valid.sum(axes, dtype=np.float64, keepdims=True)
        total = x.sum(axes, dtype=np.float64, where=valid, keepdims=True)
        mean = _divided(total, count)
        deviation = np.subtract(x, mean, dtype=np.float64)
        squares = np.square(deviation, out=deviation).sum(axes, where=valid)
        return cls(count.reshape(-1), mean.reshape(-1), squares.reshape(-1))

    def merged(self, other: MeanAndVariance) -> MeanAndVariance:
        count = self.count + other.count
        first, second = (np.where(m.count, m.mean, 0.0) for m in (self, other))
        mean = _divided(self.count * first + other.count * second, count)
        between = _divided(self.count * other.count * np.square(first - second), count)
        squares = self.squares + other.squares + np.where(count, between, 0.0)
        return MeanAndVariance(count, mean, squares)

    @property
    def variance(self) -> PerChannel:
        """(channel,) population variance; NaN without values."""
        return _divided(self.squares, self.count)

    def attributes(self) -> Attributes:
        numbers = {"mean_x_": self.mean, "n_": self.count, "var_x_": self.variance}
        single = {name: value.astype(np.float32) for name, value in numbers.items()}
        return {"type": "DStandardScalerTensor", **single}

    def summary(self) -> str:
        return f"mean {_range(self.mean)}, std {_range(np.sqrt(self.variance))}"


@dataclass(frozen=True, eq=False)
class Extremes:
    """Smallest and largest value, in the dtype of the data."""

    count: PerChannel  # (channel,) number of values
    low: PerChannel  # (channel,) smallest value; inf without values
    high: PerChannel  # (channel,) largest value; -inf without values

    @classmethod
    def of(cls, x: AnyArray, axis: int) -> Extremes:
        """Computes the extremes of an array whose channels are along `axis`."""
        axes, valid = _others(x, axis), ~np.isnan(x)
        return cls(
            valid.sum(axes, dtype=np.float64),
            x.min(axes, initial=np.inf, where=valid),
            x.max(axes, initial=-np.inf, where=valid),
        )

    def merged(self, other: Extremes) -> Extremes:
        return Extremes(
            self.count + other.count,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def attributes(self) -> Attributes:
        return {
            "type": "DMinMaxScalerTensor",
            "min_x_": self.low,
            "max_x_": self.high,
        }

    def summary(self) -> str:
        return f"min {_range(self.low)}, max {_range(self.high)}"


@dataclass(frozen=True, eq=False)
class Digests:
    """A t-digest of each channel, by the package crick, as in bridgescaler."""

    # Values that are not finite are ignored.

    digests: Sequence[Any]  # crick's digest of each channel

    @classmethod
    def of(cls, x: AnyArray, axis: int, compression: float) -> Digests:
        """Computes the digests of an array whose channels are along `axis`."""
        try:
            new: Any = importlib.import_module("crick").TDigest
        except ImportError:
            raise ValueError(
                "scaler_type: quantile needs crick: pip install "
                "'credit-jax[preprocess]'"
            ) from None
        digests = [new(compression) for _ in range(x.shape[axis])]
        for channel, digest in enumerate(digests):
            digest.update(x.take(channel, axis).ravel())
            digest.centroids()  # merges the buffered values, as bridgescaler does
        return cls(digests)

    def merged(self, other: Digests) -> Digests:
        """Merges two; the order of merging changes the last digits."""
        for digest, more in zip(self.digests, other.digests, strict=True):
            digest.merge(more)
            digest.centroids()
        return self

    @property
    def count(self) -> PerChannel:
        """(channel,) number of finite values."""
        return np.array([digest.size() for digest in self.digests])

    def attributes(self) -> Attributes:
        centroids = [structured_to_unstructured(d.centroids()) for d in self.digests]
        means = [np.ascontiguousarray(array[:, 0]) for array in centroids]
        weights = [np.ascontiguousarray(array[:, 1]) for array in centroids]
        low, high = self._ends
        return {
            "type": "DQuantileScalerTensor",
            "centroids_": centroids,
            "size_": self.count,
            "min_": low,
            "max_": high,
            "min_tensor": low,
            "max_tensor": high,
            "centroids_mean_tensor": means,
            "centroids_weight_tensor": weights,
            "centroids_mean_stacked": _stacked(means, np.inf),
            "centroids_weight_stacked": _stacked(weights, 0.0),
            "centroids_count": np.array([len(array) for array in means]),
            **dict.fromkeys(("knots_x_", "knots_z_", "knots_m_", "knots_minv_")),
        }

    @property
    def _ends(self) -> tuple[PerChannel, PerChannel]:
        low = np.array([digest.min() for digest in self.digests])
        return low, np.array([digest.max() for digest in self.digests])

    def summary(self) -> str:
        low, high = self._ends
        return f"min {_range(low)}, max {_range(high)}"


Statistics: TypeAlias = MeanAndVariance | Extremes | Digests
# Those whose merged values depend on neither order nor size of batches.
_SAVED = {kind.__name__: kind for kind in (MeanAndVariance, Extremes)}


def save_statistics(path: Path, collected: Collected, **facts: Any) -> None:
    """Writes a nested dict of statistics, and JSON values beside it, as .npz."""
    arrays: dict[str, Any] = {"facts": np.array(json.dumps(facts))}
    for keys, leaf in leaves(collected):
        for name, values in vars(leaf).items():
            arrays[json.dumps([type(leaf).__name__, name, *keys])] = values
    with new_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def load_statistics(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads what `save_statistics` wrote: the nested dict and the JSON values."""
    attributes: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
    collected: dict[str, Any] = {}
    with np.load(path) as archive:
        facts = json.loads(str(archive["facts"]))
        for encoded in filter("facts".__ne__, archive.files):
            kind, name, *keys = json.loads(str(encoded))
            attributes.setdefault((kind, *keys), {})[name] = archive[encoded]
    for (kind, *keys, last), arrays in attributes.items():
        inner = collected
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = _SAVED[kind](**arrays)
    return collected, facts


def merge_trees(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the leaves of two nested dicts of statistics with the same keys."""
    # One of them may be empty.
    if not first or not second:
        return dict(first or second)
    return {
        key: merge_trees(value, second[key])
        if isinstance(value, Mapping)
        else value.merged(second[key])
        for key, value in first.items()
    }


def _moments(x: np.ndarray) -> tuple[float, float, float]:
    """Count, mean and sum of squared deviations of one channel."""
    total = x.sum(dtype=np.float64)
    if np.isnan(total):
        x = x[~np.isnan(x)]
        total = x.sum(dtype=np.float64)
    if not x.size:
        return 0.0, np.nan, 0.0
    mean = total / x.size
    deviation = np.subtract(x, mean, dtype=np.float64)
    return float(x.size), float(mean), float(deviation @ deviation)


def _others(x: AnyArray, axis: int) -> tuple[int, ...]:
    """All axes except that of the channels."""
    return tuple(dim for dim in range(x.ndim) if dim != axis % x.ndim)


def _divided(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return values / np.where(count, count, np.nan)


def _stacked(rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Stacks rows of different lengths, padded with `fill`."""
    stacked = np.full((len(rows), max(map(len, rows), default=0)), fill)
    for part, row in zip(stacked, rows, strict=True):
        part[: len(row)] = row
    return stacked


def _range(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "unknown"
    low, high = finite.min(), finite.max()
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


@dataclass(frozen=True)
class VariableFacts:
    """What is known of the variables before a block that is fitted."""

    # Name of a variable -> its unit.
    units: Mapping[str, str] = field(default_factory=dict)
    # Name of a variable -> values of its levels.
    levels: Mapping[str, CoordinateValues] = field(default_factory=dict)


class Fitted(Transform):
    """Base class of preblocks whose files `credit-jax preprocess` fits.

    `collect` (tree) computes the statistics of one batch, before the block is applied;
    `write` (statistics, paths, `VariableFacts`) writes the files to paths in the order
    of `fitted_files`.
    """

    collect: ClassVar[Callable[..., Collected]]
    write: ClassVar[Callable[..., None]]

    @property
    def fitted_files(self) -> tuple[Path, ...]:
        """The files of the block, which are written."""
        files = files_within(type(self), self.model_dump())
        return tuple(Path(expandvars(path)) for _, path, _ in files)

    # Whether the result depends on the order and the size of batches.
    in_order: ClassVar[bool] = False


def map_leaves(change: Any, nested: Collected) -> dict[str, Any]:
    """Applies `change` to the leaves of a nested dict."""
    return {
        key: map_leaves(change, value) if isinstance(value, Mapping) else change(value)
        for key, value in nested.items()
    }


def leaves(
    nested: Collected, *keys: str
) -> Iterator[tuple[tuple[str, ...], Statistics]]:
    """Yields the leaves of a nested dict with their keys."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *keys, key)
        else:
            yield (*keys, key), value
