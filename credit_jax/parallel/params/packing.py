"""Small parameters as one vector: fewer arrays to update, to reduce and to compile for.

A WXFormer has hundreds of biases and scales and a few dozen large kernels. Kept apart,
each small array costs a kernel for every operation of the optimizer, of the average and
of the gradient sum. In the training state they are one vector, in the order of their
paths; every mesh packs the same, so a state moves from mesh to mesh as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from credit_jax.parallel.params.spec import ParamSpec

# Name of the vector among the parameters.
PACKED = "packed"


def packed_paths(param_specs: Mapping[str, ParamSpec]) -> list[str]:
    """The parameters that go into the vector, in its order."""
    return sorted(path for path, d in param_specs.items() if d.is_small)


def pack(
    params: Mapping[str, Array], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Array]:
    """Large parameters by path, and the small ones as one vector under `PACKED`."""
    paths = packed_paths(param_specs)
    out = {path: value for path, value in params.items() if path not in set(paths)}
    if paths:
        out[PACKED] = jnp.concatenate([params[path].reshape(-1) for path in paths])
    return out


def unpack(
    packed: Mapping[str, Array], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Array]:
    """The inverse of `pack`; its transpose is one concatenation."""
    paths = packed_paths(param_specs)
    out = {path: value for path, value in packed.items() if path != PACKED}
    if paths:
        shapes = [param_specs[path].shape for path in paths]
        parts = lax.split(packed[PACKED], [math.prod(shape) for shape in shapes])
        for path, shape, part in zip(paths, shapes, parts, strict=True):
            out[path] = part.reshape(shape)
    return out


def packed_param_specs(
    param_specs: Mapping[str, ParamSpec],
) -> dict[str, ParamSpec]:
    """Parameter specs of what `pack` returns."""
    paths = packed_paths(param_specs)
    out = {path: d for path, d in param_specs.items() if not d.is_small}
    if paths:
        total = sum(param_specs[path].size for path in paths)
        out[PACKED] = ParamSpec((total,), (None,))
    return out
