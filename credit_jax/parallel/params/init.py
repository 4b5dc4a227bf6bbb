"""Initial parameters as a function of global positions: the same on every mesh.

Every element is a pure function of (key, index of the parameter, global position),
drawn by Threefry-2x32 in counter mode, so each device computes only its own shards. All
parameters of a model are drawn in one call, which compiles to one small program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, UInt

from credit_jax.ops.random import random_bits
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.params.fsdp import split_axes
from credit_jax.parallel.params.spec import Initializer, ParamSpec

# Number of elements drawn in an iteration of the loop.
CHUNK = 2**20


def initialize(
    param_specs: Mapping[str, ParamSpec],
    key: Array,
    specs: Mapping[str, PartitionSpec] | None = None,
    degrees: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Draws the local shards of initial parameters; global ones without `specs`."""
    degrees = degrees or {}
    drawn = [p for p, d in param_specs.items() if d.init.kind != "constant"]
    indices = {
        path: (specs[path] if specs else PartitionSpec()) for path in param_specs
    }
    values = {
        path: jnp.full(_local_shape(d, indices[path], degrees), d.init.scale, d.dtype)
        for path, d in param_specs.items()
        if path not in drawn
    }
    if drawn:
        positions = [_positions(param_specs[p], indices[p], degrees) for p in drawn]
        flat = _draw(key, [param_specs[p].init for p in drawn], positions)
        start = 0
        for path, position in zip(drawn, positions, strict=True):
            part = flat[start : start + position.size].astype(param_specs[path].dtype)
            values[path] = part.reshape(
                _local_shape(param_specs[path], indices[path], degrees)
            )
            start += position.size
    return values


def _draw(
    key: Array,
    inits: Sequence[Initializer],
    positions: Sequence[UInt[Array, " _"]],
) -> Float[Array, " total"]:
    """Draws the values of all parameters, concatenated."""
    # A loop over chunks limits temporary memory and keeps XLA from recomputing the
    # random bits in every slice of them.
    low = jnp.concatenate(positions)
    ends = np.cumsum([position.size for position in positions])
    total = int(ends[-1])
    # At least two, as XLA writes out a loop of one.
    chunk = min(CHUNK, -(-total // 2))
    count = -(-total // chunk)
    low = jnp.pad(low, (0, count * chunk - total)).reshape(count, chunk)
    is_normal = jnp.asarray([init.kind == "normal" for init in inits])
    scale = jnp.asarray([init.scale for init in inits], jnp.float32)
    bounds = jnp.asarray(ends, jnp.uint32)

    def draw(inputs: tuple[Array, Array]) -> Array:
        index, low = inputs
        element = index * jnp.uint32(chunk) + jax.lax.iota(jnp.uint32, chunk)
        number = jnp.searchsorted(bounds, element, side="right")
        number = jnp.minimum(number, len(inits) - 1)
        bits = random_bits(key, number, low)
        # The centers of 2^24 equal parts of (-1, 1), exact in float32: `erfinv` never
        # gets an end.
        centered = (bits >> 8).astype(jnp.float32) * 2.0**-23 + (2.0**-24 - 1.0)
        normal = jax.scipy.special.erfinv(centered) * math.sqrt(2.0)
        return jnp.where(is_normal[number], normal, centered) * scale[number]

    chunks = jax.lax.map(draw, (jnp.arange(count, dtype=jnp.uint32), low))
    return chunks.reshape(-1)[:total]


def _names(param_spec: ParamSpec, spec: PartitionSpec) -> tuple[Any, ...]:
    return tuple(spec) + (None,) * (len(param_spec.shape) - len(spec))


def _local_shape(
    param_spec: ParamSpec, spec: PartitionSpec, degrees: Mapping[str, int]
) -> tuple[int, ...]:
    names = _names(param_spec, spec)
    return tuple(
        length // math.prod(degrees[axis] for axis in split_axes(name))
        for length, name in zip(param_spec.shape, names, strict=True)
    )


def _positions(
    param_spec: ParamSpec, spec: PartitionSpec, degrees: Mapping[str, int]
) -> UInt[Array, " local"]:
    """Returns the row-major global position of every local element, flattened."""
    # A sharded dim and the unsharded dims after it are contiguous and need one iota, so
    # most parameters need a single iota.
    assert param_spec.size < 2**32, f"{param_spec.shape} is too large to count"
    shape, repeat = param_spec.shape, param_spec.init.repeat
    names = _names(param_spec, spec)
    local = _local_shape(param_spec, spec, degrees)
    repeated = len(shape) - 1 if repeat > 1 else None
    starts = [d for d, name in enumerate(names) if d == 0 or name or d == repeated]
    ends = [*starts[1:], len(shape)]
    pieces = tuple(
        math.prod(local[start:end]) for start, end in zip(starts, ends, strict=True)
    )
    position = jnp.zeros(pieces, jnp.uint32)
    for piece, (start, end) in enumerate(zip(starts, ends, strict=True)):
        index = jax.lax.broadcasted_iota(jnp.uint32, pieces, piece)
        if names[start]:
            first = axis_index(names[start]) * pieces[piece]
            index = index + jnp.asarray(first, jnp.uint32)
        if start == repeated:
            index = index // jnp.uint32(repeat)
        stride = math.prod(shape[end:])
        position = position + (index * jnp.uint32(stride) if stride > 1 else index)
    return position.reshape(-1)
