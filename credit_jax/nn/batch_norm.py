"""Batch norm as a layer: parameters here, running statistics beside the weights.

Running statistics are the collection "batch_stats" of the model's state. A forward pass
finds them in `Context.batch_stats`, and leaves there what they are after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array

from credit_jax.nn.model_state import Collection
from credit_jax.nn.parameters import parameter
from credit_jax.ops.batch_stats import RunningStatistics
from credit_jax.ops.vma import varying_axes
from credit_jax.parallel.params.initializers import constant

BatchStats = dict[str, RunningStatistics]


class BatchNorm(nnx.Module):
    """Scale and bias of a torch.nn.BatchNorm2d; what it is used with normalizes."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))


def named_norms(module: nnx.Module) -> Iterator[tuple[str, int]]:
    """("up_blocks/0/attention/norm", channels) of every batch norm, sorted by path."""
    found = nnx.iter_modules(module)
    norms = {path: norm for path, norm in found if isinstance(norm, BatchNorm)}
    for path in sorted(norms, key=str):
        yield "/".join(map(str, path)), norms[path].channels


def settled(running: RunningStatistics) -> RunningStatistics:
    """The same statistics, typed as what they are: equal on all devices.

    In a training step weights vary over the mesh by type, and with them what was
    computed from all rows on every shard.
    """

    def settle(x: Array) -> Array:
        axes = tuple(sorted(varying_axes(x)))
        return lax.pmax(x, axes) if axes else x

    return jax.tree.map(settle, running)


def fresh_batch_stats(channels: Mapping[str, int]) -> Collection:
    """The stored statistics of norms that have seen no batch."""
    fresh = {path: RunningStatistics.fresh(n) for path, n in channels.items()}
    return stored_batch_stats(fresh)


def read_batch_stats(collection: Mapping[str, Mapping[str, Array]]) -> BatchStats:
    """The statistics of every norm from a stored collection."""
    return {path: RunningStatistics(**stored) for path, stored in collection.items()}


def stored_batch_stats(batch_stats: BatchStats) -> Collection:
    """The inverse of `read_batch_stats`."""
    return {path: dict(vars(one)) for path, one in batch_stats.items()}
