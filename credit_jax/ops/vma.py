"""Varying mesh axes of a value (its `vma` type): queries and casts.

JAX tracks them under `shard_map(check_vma=True)`. Outside of `shard_map` nothing varies
and the casts are the identity, so the same definitions run on one device and on many.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax
from jaxtyping import Array


def varying_axes(x: Array) -> frozenset[str]:
    """Returns the mesh axes over which `x` varies; empty outside of `shard_map`."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def pvary(x: Array, axes: Sequence[str]) -> Array:
    """Casts `x` to varying over `axes`; the transpose sums the gradient over them."""
    missing = tuple(axis for axis in axes if axis not in varying_axes(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def match_vma(*arrays: Array) -> tuple[Array, ...]:
    """Casts all arrays to varying over the union of their varying axes."""
    axes = sorted(set().union(*(varying_axes(x) for x in arrays)))
    return tuple(pvary(x, axes) for x in arrays)
