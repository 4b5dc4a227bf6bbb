"""Collectives that are the identity where an axis is absent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array

from credit_jax.ops.vma import pvary, varying_axes

# What a collective has given, as policies of `jax.checkpoint` name it: blocks that are
# recomputed keep it, so that the backward pass sends nothing a second time.
MOVED = "moved"

# (source, destination)
Pair = tuple[int, int]


def keep_moved(x: Array) -> Array:
    """`x`, the result of a collective, under the name `MOVED`."""
    return checkpoint_name(x, MOVED)


# The value of `group_halos`; JAX traces a function anew where it differs.
_GROUP_HALOS = jax.make_user_context(False)


def group_halos(on: bool) -> AbstractContextManager[None]:
    """Trace so that GPUs send the halos of both directions in one launch.

    It changes no number, and nothing on other devices. Off by default: whether one
    launch of two messages takes less time than two is for a clock to say.
    """
    return _GROUP_HALOS(on)


def ppermute_each(
    arrays: Sequence[Array], axis: str | None, pairs: Sequence[Sequence[Pair]]
) -> list[Array]:
    """`lax.ppermute` of several arrays, grouped under `group_halos`.

    Args:
        arrays: of this device.
        axis: mesh axis.
        pairs: (source, destination) devices of each.
    """

    def permuted(*arrays: Array) -> list[Array]:
        each = zip(arrays, pairs, strict=True)
        return [lax.ppermute(array, axis, pairs) for array, pairs in each]

    if len(arrays) < 2 or not _GROUP_HALOS.value:
        return permuted(*arrays)
    with set_xla_metadata(_collectives_group="", inlineable="false"):
        return jax.jit(permuted)(*arrays)


def psum(x: Any, axes: str | Sequence[str] | None) -> Any:
    """Sum over mesh axes; None or an empty tuple is the identity."""
    return lax.psum(x, axes) if axes else x


def sum_parts(x: Array, axes: Sequence[str]) -> Array:
    """Sum over mesh axes, each device adding its own part.

    Unlike `psum` it takes a value whose type does not vary over an axis, such as a
    constant: that counts once for each device, too.

    Args:
        x: this device's part of the sum.
        axes: mesh axes; an empty sequence is the identity.
    """
    return psum(pvary(x, axes), tuple(axes))


def psum_varying(x: Array) -> Array:
    """Sum over exactly the axes that `x` varies over: the sum over all its shards."""
    return psum(x, tuple(sorted(varying_axes(x))))


def psum_each(arrays: Sequence[Array], axes: Sequence[tuple[str, ...]]) -> list[Array]:
    """`psum` of several arrays; those with the same axes are sent as one vector.

    Args:
        arrays: of any shapes.
        axes: the mesh axes of each; an empty tuple is the identity.
    """
    together: dict[Any, list[int]] = {}
    for i, (array, names) in enumerate(zip(arrays, axes, strict=True)):
        if names:
            key = names, varying_axes(array), array.dtype
            together.setdefault(key, []).append(i)
    out = list(arrays)
    for (names, *_), members in together.items():
        parts = [out[i] for i in members]
        flat = psum(jnp.concatenate([part.reshape(-1) for part in parts]), names)
        pieces = lax.split(flat, [part.size for part in parts])
        for i, part, piece in zip(members, parts, pieces, strict=True):
            out[i] = piece.reshape(part.shape)
    return out


def axis_index(axis: str | tuple[str, ...] | None) -> Array | int:
    """Coordinate of this device along `axis`; 0 where the axis is absent.

    Of several axes, the first is outermost.
    """
    return lax.axis_index(axis) if axis else 0
