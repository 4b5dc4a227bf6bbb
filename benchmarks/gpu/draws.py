"""Weights and inputs that are the same bits on every machine and with every version.

They are the raw numbers of PCG64, whose stream numpy guarantees; those of its normal
distribution, and JAX's, may change with a version or a device. `sketch` shortens an
array to few sums from which distances can still be told.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.diffusion.process import TIME
from credit_jax.models.model_def import ModelDef

State = dict[str, np.ndarray]

# Sums of a sketch. A relative distance of sketches is that of the arrays within about
# sqrt(2 / SUMS): a seventh.
SUMS = 32
_BITS = 24


def uniform(name: str, shape: Sequence[int]) -> np.ndarray:
    """Returns uniform numbers of mean 0 and variance 1, float32.

    Args:
        name: the seed.
        shape: shape of the array.
    """
    parts = _raw(name, int(np.prod(shape))) >> np.uint64(64 - _BITS)
    centered = (parts.astype(np.float64) + 0.5) / 2**_BITS - 0.5
    return (centered * 12**0.5).astype(np.float32).reshape(shape)


def _raw(name: str, count: int) -> np.ndarray:
    return np.asarray(np.random.PCG64(zlib.crc32(name.encode())).random_raw(count))


def inputs_of(model_def: ModelDef, batch: int = 1) -> State:
    """Returns inputs of the network, by name; a noise step is an integer."""
    specs = model_def.network_inputs.items()
    inputs = {k: uniform(f"input {k}", spec.shape(batch)) for k, spec in specs}
    if model_def.process is not None:
        steps = _raw("step", batch) % np.uint64(len(model_def.process.betas))
        inputs[TIME] = steps.astype(np.float32).reshape(batch, 1)
    return inputs


def drawn_state(model_def: ModelDef) -> State:
    """Returns a state dict of CREDIT with drawn weights.

    Matrices and kernels have the variance 1 / inputs, vectors the deviation 0.1 around
    1 or 0, vectors of spectral norm the length 1. What depends on no weight is as the
    key table has it.
    """
    zeros, ones = (_filled(model_def, value) for value in (0, 1))
    state = {
        key: array if np.array_equal(array, zeros[key]) else _drawn(key, array)
        for key, array in ones.items()
    }
    # Keys that share a parameter have equal values after this.
    return to_state_dict(model_def, *from_state_dict(model_def, state))


def _filled(model_def: ModelDef, value: float) -> State:
    """The state dict of weights that are all one number."""
    filled: Any = [
        jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), like)
        for like in (model_def.param_specs, model_def.model_state_shapes)
    ]
    return to_state_dict(model_def, *filled)


def _drawn(key: str, like: np.ndarray) -> np.ndarray:
    array = uniform(key, like.shape).astype(like.dtype)
    if key.endswith(("weight_u", "weight_v")):
        return array / np.linalg.norm(array)
    if key.endswith("running_var"):
        return 1 + 0.2 * array
    fans = like.size // max(len(like), 1) if like.ndim else 1
    if like.ndim > 1 and fans > 1:
        return array / np.sqrt(fans).astype(array.dtype)
    about = 1 if key.rsplit(".", 1)[-1] in ("weight", "g", "gamma") else 0
    return about + 0.1 * array


def sketch(name: str, array: np.ndarray) -> np.ndarray:
    """Returns `SUMS` sums of the values, each value in one of them, with random signs.

    The sketch of a difference is the difference of sketches, and its expected squared
    norm is that of the array. An array of at most `SUMS` values is its own sketch.

    Args:
        name: the seed.
        array: array of any shape.
    """
    wide = np.asarray(array, np.float64).ravel()
    if wide.size <= SUMS:
        return wide
    raw = _raw(name, wide.size)
    places = (raw >> np.uint64(32)) % np.uint64(SUMS)
    signs = np.where(raw >> np.uint64(63), 1.0, -1.0)
    return np.bincount(places.astype(np.int64), signs * wide, SUMS)


def distance(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Returns the relative distance of sketches, of all names of `expected` together.

    It is infinite where a value is not finite, or a name is missing.
    """
    pairs = [(actual.get(name), array) for name, array in expected.items()]
    if any(a is None or np.shape(a) != np.shape(b) for a, b in pairs):
        return float("inf")
    joined = [np.concatenate([np.ravel(p[i]) for p in pairs]) for i in (0, 1)]
    a, b = (np.asarray(x, np.float64) for x in joined)
    if not np.isfinite(a).all():
        return float("inf")
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))
