"""The weights of a package: a safetensors file with CREDIT's names."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from credit_jax.models.conversion import key_map_for, native_key_map
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS
from credit_jax.state_dict.key_map import Arrays, HostModelState, KeyMap
from credit_jax.state_dict.key_table import raise_non_finite, raise_problems

CREDIT, NATIVE = "CREDIT", "credit_jax"
# Largest size in bytes of the JSON header, as in safetensors itself.
_MAX_HEADER = 100_000_000


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
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
    # The size that the header claims, before memory is allocated.
    claimed = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if len(start) < 8 or claimed > min(_MAX_HEADER, size - 8):
        raise ValueError(
            f"{path}: not a whole safetensors file: its header claims {claimed:,} "
            f"bytes, the file has {size:,}; get the package again"
        )
    try:
        with safe_open(os.fspath(path), framework="np") as file:
            arrays = {key: file.get_tensor(key) for key in list(file.keys())}
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}); get the package again"
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
