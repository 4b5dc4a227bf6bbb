"""Collectives that are the identity if the mesh has no such axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array

from credit_jax.ops.custom_vjp import pvary, varying_axes
from credit_jax.ops.packed import pack, unpack
from credit_jax.parallel.mesh.device_mesh import ORDER

# The `checkpoint_name` of results of collectives. Rematerialization policies save them,
# so the backward pass does not repeat the communication.
MOVED = "moved"

# (source, destination)
SourceTarget = tuple[int, int]


def keep_moved(x: Array) -> Array:
    """Returns `x`, the result of a collective, with the checkpoint name `MOVED`."""
    return checkpoint_name(x, MOVED)


# The value of `group_halos`, part of JAX's trace cache key.
_GROUP_HALOS = jax.make_user_context(False)


def group_halos(on: bool) -> AbstractContextManager[None]:
    """Traces so that GPUs send the halos of both directions as one group."""
    # Both `ppermute`s become one launch, with the same results. Off by default: measure
    # whether it is faster.
    return _GROUP_HALOS(on)


def ppermute_each(
    arrays: Sequence[Array], axis: str | None, pairs: Sequence[Sequence[SourceTarget]]
) -> list[Array]:
    """`lax.ppermute` of several arrays, as one group inside of `group_halos(True)`."""

    def permuted(*arrays: Array) -> list[Array]:
        each = zip(arrays, pairs, strict=True)
        return [lax.ppermute(array, axis, pairs) for array, pairs in each]

    if len(arrays) < 2 or not _GROUP_HALOS.value:
        return permuted(*arrays)
    # XLA launches the collectives of such a call together, if it stays a call.
    with set_xla_metadata(_collectives_group="", inlineable="false"):
        return jax.jit(permuted)(*arrays)


def axis_size(axis: str | None) -> int:
    """Returns the degree of a mesh axis, 1 if the mesh has no such axis."""
    try:
        return 1 if axis is None else lax.axis_size(axis)
    except NameError as error:
        # An axis of degree 1 is left out of the mesh; any other name is an error.
        if axis in ORDER:
            return 1
        raise ValueError(
            f"axis is {axis!r}; expected an axis of the mesh of a shard_map around "
            f"this, or one of {', '.join(ORDER)}"
        ) from error


def psum(x: Any, axes: str | Sequence[str] | None) -> Any:
    """`lax.psum`; with None or an empty sequence of axes, the identity."""
    return lax.psum(x, axes) if axes else x


def sum_parts(x: Array, axes: Sequence[str]) -> Array:
    """Sums the terms of all devices along mesh axes."""
    # `psum` alone refuses values that are invarying over an axis, such as constants;
    # here they count once for each device.
    return psum(pvary(x, axes), tuple(axes))


def psum_varying(x: Array) -> Array:
    """Sums over exactly the axes that `x` varies over: the sum over all its shards."""
    return psum(x, tuple(sorted(varying_axes(x))))


def psum_each(arrays: Sequence[Array], axes: Sequence[Sequence[str]]) -> list[Array]:
    """`psum` of several arrays; those with the same axes and dtype are concatenated."""
    return _concatenated(psum, arrays, axes)


def pvary_each(arrays: Sequence[Array], axes: Sequence[Sequence[str]]) -> list[Array]:
    """`pvary` of several arrays; sums gradients of one type as one array."""
    return _concatenated(pvary, arrays, axes)


def _concatenated(
    function: Callable[[Array, Sequence[str]], Array],
    arrays: Sequence[Array],
    axes: Sequence[Sequence[str]],
) -> list[Array]:
    """Applies a function of (vector, axes) to arrays of the same type at once."""
    together: dict[Any, list[int]] = {}
    for i, (array, names) in enumerate(zip(arrays, axes, strict=True)):
        if names:
            # What varies over other axes would make all of a vector vary over them.
            key = tuple(names), varying_axes(array), array.dtype
            together.setdefault(key, []).append(i)
    out = list(arrays)
    for (names, *_), members in together.items():
        parts = [out[i] for i in members]
        flat = function(pack(parts), names)
        pieces = unpack(flat, [part.shape for part in parts])
        for i, piece in zip(members, pieces, strict=True):
            out[i] = piece
    return out


def axis_index(axis: str | tuple[str, ...] | None) -> Array | int:
    """Returns this device's index along an axis, or several, the first outermost."""
    return lax.axis_index(axis) if axis else 0
