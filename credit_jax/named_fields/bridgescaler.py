"""Reads the scalers that bridgescaler and `credit preprocess` write as JSON.

A file is `{data_type: {source: {var_key: scaler}}}`, where data_type is "input" or
"target". Each scaler is a JSON string: the attributes of bridgescaler's object and its
class name under "type"; arrays are base64 under "__numpy__".
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.lib.format import descr_to_dtype, dtype_to_descr

PerChannel = Float[np.ndarray, " channel"]
# Names or indices of the channels that a scaler was fitted to; () if it has none.
ColumnNames: TypeAlias = tuple[Any, ...]


# Arrays are (channel,), in the dtype of the file; a channel is a level or a grid point.
# `channels_last`: whether channels are the last dim of a field, or the second.


@dataclass(frozen=True, eq=False)
class StandardScaler:
    """bridgescaler's DStandardScaler(Tensor): `(x - mean) / sqrt(variance)`."""

    mean: PerChannel
    variance: PerChannel
    columns: ColumnNames
    channels_last: bool


@dataclass(frozen=True, eq=False)
class DeepStandardScaler:
    """bridgescaler's DeepStandardScaler: `(x - mean) / deviation`, of samples."""

    mean: PerChannel
    deviation: PerChannel
    channels_last: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class MinMaxScaler:
    """bridgescaler's DMinMaxScaler(Tensor): `(x - min) / (max - min)`."""

    minimum: PerChannel
    maximum: PerChannel
    columns: ColumnNames
    channels_last: bool


@dataclass(frozen=True, eq=False)
class QuantileScaler:
    """bridgescaler's DQuantileScaler(Tensor): a t-digest of each channel."""

    centroids: tuple[Float[np.ndarray, "_ 2"], ...]  # means, weights
    minimum: PerChannel
    maximum: PerChannel
    size: PerChannel  # number of values seen
    distribution: str  # of transformed values: uniform, normal or logistic
    min_val: float  # bounds of quantiles before the distribution
    max_val: float
    fast_transform: bool  # interpolates between `num_knots` knots
    num_knots: int
    columns: ColumnNames
    channels_last: bool


Scaler: TypeAlias = StandardScaler | DeepStandardScaler | MinMaxScaler | QuantileScaler
# {data_type: {source: {var_key: scaler}}}
ScalerDict: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Scaler]]]


def read_scalers(path: str | Path) -> dict[str, dict[str, dict[str, Scaler]]]:
    """Reads the scalers of a file: {data_type: {source: {var_key: scaler}}}."""
    path = os.path.expandvars(path)
    try:
        text = Path(path).read_text()
        nested = json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"scaler file {path}: cannot be read: {error}") from error
    if not _is_nested(nested):
        raise ValueError(
            f"scaler file {path}: expected {{data_type: {{source: {{variable: scaler "
            "as a string of JSON}}}, as `credit preprocess` writes it"
        )
    parsed: dict[str, dict[str, dict[str, Scaler]]] = {}
    for data_type, sources in nested.items():
        by_source = parsed.setdefault(data_type, {})
        for source, scalers in sources.items():
            by_key = by_source.setdefault(source, {})
            for key, scaler in scalers.items():
                try:
                    by_key[key] = parse_scaler(scaler)
                except (ValueError, KeyError, TypeError) as error:
                    subject = f"scaler file {path}, {key}"
                    raise ValueError(f"{subject}: {error}") from error
    return parsed


def parse_scaler(text: str) -> Scaler:
    """Parses a scaler from the JSON string of bridgescaler's `print_scaler`."""
    values = json.loads(text, object_hook=_decode_array)
    if not isinstance(values, dict) or "type" not in values:
        raise ValueError("expected the attributes of a scaler with its type")
    name = str(values["type"]).removesuffix("Tensor")
    if name not in _CLASSES:
        raise ValueError(
            f"got type {values['type']!r}, expected one of {', '.join(_CLASSES)} "
            "(each with or without the ending Tensor)"
        )
    scaler, keys = _CLASSES[name]
    try:
        arrays = {name: _array(values, key) for name, key in keys.items()}
        about: dict[str, Any] = {}
        if scaler is not DeepStandardScaler:
            columns = values.get("x_columns_")
            names = () if columns is None else np.asarray(columns).tolist()
            last = bool(values.get("channels_last", True))
            about = {"columns": tuple(names), "channels_last": last}
        if scaler is QuantileScaler:
            if values.get("centroids_") is None:
                raise KeyError("centroids_")
            centroids = (np.asarray(c, np.float64) for c in values["centroids_"])
            about |= {
                "centroids": tuple(centroids),
                "distribution": values["distribution"],
                "min_val": float(values["min_val"]),
                "max_val": float(values["max_val"]),
                "fast_transform": bool(values.get("fast_transform", False)),
                "num_knots": int(values.get("n_knots", 256)),
            }
        return scaler(**arrays, **about)
    except KeyError as error:
        raise ValueError(
            f"{values['type']} has no {error.args[0]}: it is not fitted"
        ) from error


def levels_of(scaler: Scaler) -> tuple[float, ...] | None:
    """The names of the channels of a scaler, where they are values of levels."""
    columns = getattr(scaler, "columns", ())
    # `credit preprocess` fits arrays, whose channels are only counted from 0.
    counted = columns == tuple(range(len(columns)))
    numbers = all(isinstance(column, int | float) for column in columns)
    return tuple(map(float, columns)) if columns and numbers and not counted else None


def take_channels(scaler: Scaler, indices: Int[np.ndarray, " n"]) -> Scaler:
    """Returns a scaler with some channels of another, in this order."""

    def taken(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[indices]
        return tuple(value[k] for k in indices) if isinstance(value, tuple) else value

    names = (attribute.name for attribute in fields(scaler))
    return replace(scaler, **{name: taken(getattr(scaler, name)) for name in names})


def channel_variance(scaler: Scaler) -> PerChannel | None:
    """(channel,) float32 variance of the data; None for a min-max scaler."""
    if isinstance(scaler, StandardScaler):
        return np.asarray(scaler.variance, np.float32)
    if isinstance(scaler, DeepStandardScaler):
        return np.square(np.asarray(scaler.deviation, np.float32))
    if isinstance(scaler, MinMaxScaler):
        return None
    # The variance of the centroids, slightly less than that of the data. Differs from
    # CREDIT: reads the numpy DQuantileScaler, too, which CREDIT skips.
    return np.array([_variance(c) for c in scaler.centroids], np.float32)


def target_variances(path: str | Path) -> dict[str, float]:
    """Reads the variance, if finite, of target variables, averaged over channels."""
    scalers = read_scalers(path)
    if "target" not in scalers:
        raise ValueError(
            f"scaler file {path}: got scalers of {', '.join(scalers)}, expected those "
            "of target"
        )
    variances = {
        key: channel_variance(scaler)
        for source_scalers in scalers["target"].values()
        for key, scaler in source_scalers.items()
    }
    return {
        key: float(variance.mean())
        for key, variance in variances.items()
        if variance is not None and np.isfinite(variance).all()
    }


def _variance(centroids: Float[np.ndarray, "centroid 2"]) -> float:
    """Variance of weighted centroids; 1 if there are none, as in CREDIT."""
    means, weights = centroids[:, 0], centroids[:, 1]
    total = weights.sum()
    if total <= 0:
        return 1.0
    mean = (weights * means).sum() / total
    return float((weights * np.square(means - mean)).sum() / total)


def _is_nested(value: Any, depth: int = 3) -> bool:
    if depth == 0:
        return isinstance(value, str)
    return isinstance(value, dict) and all(
        _is_nested(item, depth - 1) for item in value.values()
    )


def _decode_array(values: dict[str, Any]) -> Any:
    """A JSON `object_hook` that decodes bridgescaler's two array encodings."""
    if "__numpy__" in values:
        flat = np.frombuffer(
            b64decode(values["__numpy__"]), descr_to_dtype(values["dtype"])
        )
        return flat.reshape(values["shape"]) if values["shape"] else flat[0]
    if values.get("object") == "ndarray":
        return np.array(values["data"], values["dtype"]).reshape(values["shape"])
    return values


def _array(values: Mapping[str, Any], name: str) -> Shaped[np.ndarray, " channel"]:
    if values.get(name) is None:
        raise KeyError(name)
    return np.atleast_1d(np.asarray(values[name]))


# Class of bridgescaler -> ours, and its arrays by their keys.
_CLASSES: dict[str, tuple[type[Scaler], dict[str, str]]] = {
    "DStandardScaler": (StandardScaler, {"mean": "mean_x_", "variance": "var_x_"}),
    "DMinMaxScaler": (MinMaxScaler, {"minimum": "min_x_", "maximum": "max_x_"}),
    "DQuantileScaler": (
        QuantileScaler,
        {"minimum": "min_", "maximum": "max_", "size": "size_"},
    ),
    "DeepStandardScaler": (DeepStandardScaler, {"mean": "mean_", "deviation": "sd_"}),
}


# Attributes of one object of bridgescaler, and its class under "type".
Attributes: TypeAlias = Mapping[str, Any]


def write_scalers(
    path: str | Path, scalers: Mapping[str, Mapping[str, Mapping[str, Attributes]]]
) -> None:
    """Writes attributes as a JSON file that `read_scalers` reads, arrays in base64."""
    options: Any = {
        "indent": 4,
        "sort_keys": True,
        # As bridgescaler encodes arrays.
        "default": lambda array: {
            "__numpy__": b64encode(array.tobytes()).decode(),
            "dtype": dtype_to_descr(array.dtype),
            "shape": array.shape,
        },
    }
    nested = {
        data_type: {
            source: {key: json.dumps(each, **options) for key, each in by_key.items()}
            for source, by_key in sources.items()
        }
        for data_type, sources in scalers.items()
    }
    Path(path).write_text(json.dumps(nested, **options))
