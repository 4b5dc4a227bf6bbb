"""Collectives that are the identity where an axis is absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jaxtyping import Array

from credit_jax.ops.varying import vary, vary_alike, varying_axes

__all__ = ["axis_index", "psum", "psum_varying", "vary", "vary_alike", "varying_axes"]


def psum(x: Any, axes: str | Sequence[str] | None) -> Any:
    """Sum over mesh axes; None or an empty tuple is the identity."""
    return lax.psum(x, axes) if axes else x


def psum_varying(x: Array) -> Array:
    """Sum over exactly the axes that `x` varies over: the sum over all its shards."""
    return psum(x, tuple(sorted(varying_axes(x))))


def axis_index(axis: str | None) -> Array | int:
    """Coordinate of this device along `axis`; 0 where the axis is absent."""
    return lax.axis_index(axis) if axis else 0
