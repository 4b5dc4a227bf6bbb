"""Normalization over channels, and running statistics of batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.dense import scale_and_shift

PerChannel = Float[Array, " channel"]

Channels = Float[Array, "*batch channel"]


def layer_norm(
    x: Channels, scale: PerChannel, bias: PerChannel, *, epsilon: float = 1e-5
) -> Channels:
    """Layer normalization over channels, in float32 or wider; has the dtype of `x`."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return scale_and_shift(_normalize(wide, epsilon), scale, bias).astype(x.dtype)


@partial(custom_vjp, nondiff_argnums=(1,))
def _normalize(x: Array, epsilon: float) -> Array:
    return _forward(x, epsilon)[0]


def _forward(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    centered = x - _mean(x)
    # The variance is biased, as in CREDIT's LayerNorm and torch.nn.LayerNorm.
    inverse = lax.rsqrt(_mean(centered * centered) + epsilon)
    normal = centered * inverse
    # One array of the size of `x` is saved for the backward pass.
    return normal, (normal, inverse)


@partial(_normalize.defvjp, _forward)
def _backward(
    epsilon: float, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array]:
    del epsilon
    normal, inverse = saved
    along = normal * _mean(normal * cotangent)
    return (inverse * (cotangent - _mean(cotangent) - along),)


def _mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RunningStatistics:
    """Running statistics of batch normalization, a pytree."""

    # Any: the same tree structure also contains specs or shapes.
    # (channel,) float; the variance is unbiased, as torch stores it.
    mean: Any
    variance: Any
    # () integer, the number of training batches (torch's num_batches_tracked).
    count: Any

    @classmethod
    def fresh(cls, channels: int, dtype: DTypeLike = jnp.float32) -> RunningStatistics:
        """Initial statistics: mean 0, variance 1, count 0, as torch.nn.BatchNorm2d."""
        zero = jnp.zeros((), jnp.int32)
        return cls(jnp.zeros(channels, dtype), jnp.ones(channels, dtype), zero)

    def updated(
        self,
        mean: PerChannel,
        variance: PerChannel,
        *,
        num_values: int,
        momentum: float | None,
    ) -> RunningStatistics:
        """Returns the statistics after one more batch, without gradient."""
        count = self.count + 1
        # None gives the arithmetic mean over all batches.
        weight = 1 / count.astype(jnp.float32) if momentum is None else momentum
        # The variance of a batch is biased.
        unbiased = variance * (num_values / (num_values - 1))

        def blend(old: Array, new: Array) -> Array:
            new = lax.stop_gradient(new).astype(old.dtype)
            return ((1 - weight) * old + weight * new).astype(old.dtype)

        return RunningStatistics(
            blend(self.mean, mean), blend(self.variance, unbiased), count
        )
