"""Sums and quotients that carry their rounding errors along; relative errors."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from credit_jax.ops.space_to_depth import next_power_of_2


def compensated_sum(
    x: Float[Array, "*batch size"],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Returns the sum over the last dim as `high + low`, added up in pairs."""
    size = next_power_of_2(x.shape[-1])
    high = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    low = jnp.zeros_like(high)
    while size > 1:
        size //= 2
        # `low` sums the rounding errors of `high`, so that both together have about
        # twice the digits (Ogita, Rump and Oishi, 2005, "Accurate sum and dot
        # product").
        high, error = two_sum(high[..., :size], high[..., size:])
        low = low[..., :size] + low[..., size:] + error
    return high[..., 0], low[..., 0]


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns a + b, and what it lacks: a + b = total + error, exactly (Knuth)."""
    # The barrier keeps compilers from simplifying a + b - a.
    total = lax.optimization_barrier(a + b)
    remainder = total - a
    return total, (a - (total - remainder)) + (b - remainder)


def parts_to_sum(high: Array, low: Array) -> tuple[Array, Array]:
    """Splits `high + low` into parts whose sums over a few devices are exact."""
    # The first has 12 bits, so that sums of it are not rounded; the second is small.
    top, remainder = _halves(high)
    return top, remainder + low


def quotient(a: Array, high: Array, low: Array) -> Array:
    """Returns a / (high + low), rounded once but for rare ties."""
    q = a / high
    (q1, q2), (h1, h2) = _halves(q), _halves(high)
    # The remainder of a / high is exact, as products of halves are (Dekker, 1971).
    remainder = (((a - q1 * h1) - q1 * h2) - q2 * h1) - q2 * h2
    return q + (remainder - q * low) / high


def _halves(x: Array) -> tuple[Array, Array]:
    """Splits float32 numbers into 12 bits and the rest."""
    top = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=11)
    return top, x - top


def relative_error(actual: ArrayLike, expected: ArrayLike) -> float:
    """|actual - expected| / |expected|; infinity if shapes differ, or for NaN."""
    a = np.asarray(actual).astype(np.float64)
    b = np.asarray(expected).astype(np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    scale = np.linalg.norm(b.ravel())
    return float(np.linalg.norm((a - b).ravel()) / (scale if scale > 0 else 1.0))


def joint_error(
    actual: Mapping[str, ArrayLike], expected: Mapping[str, ArrayLike]
) -> float:
    """The relative error of all arrays of `expected` as one vector."""
    return relative_error(
        *(
            np.concatenate([np.ravel(np.asarray(arrays[key])) for key in expected])
            for arrays in (actual, expected)
        )
    )
