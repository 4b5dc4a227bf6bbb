"""Normalization over channels, and running statistics of batches."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def batch_norm(
    x: Channels,
    scale: PerChannel,
    bias: PerChannel,
    running: RunningStatistics,
    *,
    training: bool,
    momentum: float | None = 0.1,  # None: the mean over all batches
    epsilon: float = 1e-5,
    mean_of: Callable[[Array], Array] | None = None,
    num_values: int | None = None,
) -> tuple[Channels, RunningStatistics]:
    """Batch normalization, as torch.nn.BatchNorm2d, and the statistics after it."""
    # `mean_of` may be the mean over all devices, which have `num_values` a channel.
    if mean_of is None:
        mean_of = partial(jnp.mean, axis=tuple(range(x.ndim - 1)))
    num_values = num_values or math.prod(x.shape[:-1])
    lead = (1,) * (x.ndim - 1)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if training:
        if num_values < 2:
            raise ValueError(
                f"batch normalization got {num_values} value a channel in training; "
                "expected at least 2: use a larger batch or grid"
            )
        mean = mean_of(wide)
        centered = wide - mean.reshape(*lead, -1)
        variance = mean_of(centered * centered)
        running = running.updated(
            mean, variance, num_values=num_values, momentum=momentum
        )
    else:
        centered = wide - running.mean.reshape(*lead, -1)
        variance = running.variance
    normal = centered * lax.rsqrt(variance + epsilon).reshape(*lead, -1)
    return scale_and_shift(normal, scale, bias).astype(x.dtype), running
