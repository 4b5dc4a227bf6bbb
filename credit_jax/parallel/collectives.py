"""Collectives that are the identity where an axis is absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from credit_jax.ops.vma import pvary, varying_axes

# What a collective has given, as policies of `jax.checkpoint` name it: blocks that are
# recomputed keep it, so that the backward pass sends nothing a second time.
MOVED = "moved"


def keep_moved(x: Array) -> Array:
    """`x`, the result of a collective, under the name `MOVED`."""
    return checkpoint_name(x, MOVED)


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


def axis_index(axis: str | None) -> Array | int:
    """Coordinate of this device along `axis`; 0 where the axis is absent."""
    return lax.axis_index(axis) if axis else 0
