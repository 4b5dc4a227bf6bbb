"""The weights (by CREDIT's names), channels and fields of a package, as its files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.source import Source
from credit_jax.data.sources.tisr import open_axes
from credit_jax.io.netcdf import write_netcdf
from credit_jax.io.open_files import OpenFiles, opened
from credit_jax.models.conversion import key_map_for, native_key_map
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS
from credit_jax.named_fields.units import DEGREES
from credit_jax.packages.manifest import read_json
from credit_jax.state_dict.key_map import Arrays, HostModelState, KeyMap
from credit_jax.state_dict.key_table import raise_non_finite, raise_problems

CREDIT, NATIVE = "CREDIT", "credit_jax"


def names_of(model_def: ModelDef) -> str:
    """Returns whose names the arrays of a model have: CREDIT's, if it has the model."""
    return CREDIT if MODELS[model_def.config.type].key_table else NATIVE


def write_weights(
    path: Path, model_def: ModelDef, params: Arrays, model_state: HostModelState
) -> None:
    """Writes the weights of a model, bit-exact; with adapters only what is trained."""
    if model_def.low_rank is not None:
        params = {name: params[name] for name in model_def.trainable}
    state = _key_map(model_def).write(params, model_state)
    raise_non_finite(state, f"{path.name}: NaN or infinite weights")
    # safetensors makes files that only their owner can read.
    path.touch()
    mode = path.stat().st_mode
    save_file(state, os.fspath(path), {"format": "pt"})
    path.chmod(mode)


def read_weights(path: Path, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
    """Reads the weights of a model: the inverse of `write_weights`."""
    key_map = _key_map(model_def)
    try:  # which checks the size of the header before it allocates memory
        with safe_open(os.fspath(path), framework="np") as file:
            arrays = {key: file.get_tensor(key) for key in list(file.keys())}
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({type(error).__name__}: {error}); "
            "get the package again"
        ) from None
    try:
        key_map.check(arrays)
        # Arrays with another dtype than in the model, one line each.
        state, lines = model_def.model_state_shapes, []
        for entry in key_map.entries:
            like = (
                state[entry.collection][entry.path][entry.leaf]
                if entry.leaf
                else model_def.param_specs[entry.path]
            )
            one = np.zeros((1,) * len(entry.shape), like.dtype)
            expected, actual = (
                entry.arrangement.to_torch(one).dtype,
                arrays[entry.key].dtype,
            )
            if actual != expected:
                lines.append(f"dtype: {entry.key} is {actual}, expected {expected}")
        raise_problems(lines, "arrays of another dtype")
        raise_non_finite(arrays, f"{path.name}: NaN or infinite weights")
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}\nThese are not the weights of model.yml beside it; get "
            "the package again"
        ) from None
    return key_map.read(arrays)


def _key_map(model_def: ModelDef) -> KeyMap:
    """CREDIT's names of a model that it has; our paths of others, and of adapters."""
    if model_def.low_rank is not None:
        return native_key_map(model_def, model_def.trainable)
    is_credit = names_of(model_def) == CREDIT
    return key_map_for(model_def) if is_credit else native_key_map(model_def)


_CURVED = ("y", "x")


def write_grid(path: Path, latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Writes latitudes and longitudes, (lat,) and (lon,), or both (y, x); degrees."""
    arrays = {"latitude": latitude, "longitude": longitude}
    coordinates = {
        name: (
            _CURVED if values.ndim == 2 else (name,),
            values,
            {key: DEGREES[name][key] for key in ("units", "standard_name")},
        )
        for name, values in arrays.items()
    }
    _save(xr.Dataset(coords=coordinates), path)


def read_grid(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of `write_grid`."""
    with opened(path) as dataset:
        latitude, longitude = (dataset[name].values for name in DEGREES)
    return latitude, longitude


def write_axes(path: Path, source: str) -> None:
    """Copies the latitudes and longitudes that a computed source reads from a file."""
    arrays = open_axes(source, OpenFiles())
    _save(xr.Dataset({str(axis.name): axis.variable for axis in arrays}), path)


def write_static(path: Path, source: Source) -> None:
    """Writes the static variables of a source with the values in its files."""
    if not isinstance(source, FileSource):
        raise ValueError(
            f"data.source.{source.name}: static fields of dataset_type "
            f"{source.config.dataset_type!r} are not copied"
        )
    parts: list[xr.Dataset] = []
    for kind, name in source.files:
        if kind == "static":
            file = source.reader.open(source.files[kind, name].first_path)
            field = file.dataset[[name]]
            if file.time_coord in field.dims:
                field = field.isel({file.time_coord: 0}, drop=True)
            parts.append(field.load())
    # Static variables of all files of a source must have the same grid.
    _save(xr.merge(parts, compat="override", join="exact"), path)


def _save(dataset: xr.Dataset, path: Path) -> None:
    """Writes values as they are in memory, without the encoding of their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = dataset.drop_encoding()
    names: Iterable[Any] = plain.variables
    encoding: dict[Any, dict[str, Any]] = {name: {"_FillValue": None} for name in names}
    write_netcdf(plain, path, encoding)


_INPUT, _OUTPUT = "input", "output"


def channel_groups(
    schema: ChannelSchema, further: Mapping[str, ChannelSchema]
) -> dict[str, Sequence[ChannelGroup]]:
    """The variables of "input", "output", and each further input of the model."""
    inputs = {name: of_input.input for name, of_input in further.items()}
    return {_INPUT: schema.input, _OUTPUT: schema.target, **inputs}


def write_channels(
    path: Path,
    groups: Mapping[str, Sequence[ChannelGroup]],
    levels: Mapping[str, Sequence[float] | None],
    described: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes the channels, in order; "level" is null without levels."""
    content: dict[str, list[dict[str, Any]]] = {name: [] for name in groups}
    for name, group in ((name, g) for name, some in groups.items() for g in some):
        values: Sequence[float | None] = [None]
        if "/3d/" in group.var_key:
            levels_of_source = levels.get(group.source) or ()
            fits = len(levels_of_source) == group.n_levels
            values = list(levels_of_source) if fits else list(range(group.n_levels))
        attributes = {"units": None, **described.get(group.var_key, {})}
        for level in values:
            entry = {"key": group.var_key, "variable": group.variable, "level": level}
            content[name].append(entry | attributes)
    path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


def read_channels(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The channels of "input", "output", and each further input, in order."""
    content = read_json(path)
    try:
        names = dict.fromkeys((_INPUT, _OUTPUT, *content))
        channels = {name: [dict(entry) for entry in content[name]] for name in names}
        for name, entries in channels.items():
            seen = dict[tuple[Any, Any], int]()
            for index, entry in enumerate(entries):
                key, level = entry["key"], entry["level"]
                first = seen.setdefault((key, level), index)
                if first != index:
                    at = "" if level is None else f" at level {level}"
                    raise ValueError(
                        f"{path}: {name} channels {first} and {index} are both "
                        f"{key}{at}; expected each channel once. Do not use this "
                        "package"
                    )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: no list of channels of {_INPUT} and {_OUTPUT} ({error!r}); the "
            "package is damaged, get it again"
        ) from None
    return channels


def groups_of(entries: Sequence[Mapping[str, Any]]) -> tuple[ChannelGroup, ...]:
    """The variables of `read_channels`, in order; their times are not recorded."""
    levels: dict[str, list[float | None]] = {}
    for entry in entries:
        levels.setdefault(entry["key"], []).append(entry["level"])
    return tuple(
        ChannelGroup(
            key, len(values), 1, None if None in values else tuple(levels_of_source)
        )
        for key, values in levels.items()
        for levels_of_source in ([float(x) for x in values if x is not None],)
    )
