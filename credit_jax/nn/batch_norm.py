"""Batch norm as a layer whose running statistics are state of the module.

The statistics are `nnx.BatchStat` variables. `ModelDef` reads them from the collection
"batch_stats" of the model state, `run_block` and `scan_blocks` pass those of all
norms below a block into and out of it, and `ModelDef.apply_and_update` returns the
collection after the forward pass. Blocks only call their norms.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array

from credit_jax.nn.context import Context
from credit_jax.nn.parameters import batch_stat, parameter
from credit_jax.ops import RunningStatistics
from credit_jax.ops.vma import varying_axes
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.params.initializers import constant
from credit_jax.parallel.rows.layout import Field


class BatchNorm(nnx.Module):
    """torch.nn.BatchNorm2d on fields.

    In training the statistics are those of the global batch on every mesh, as in
    torch.nn.SyncBatchNorm.

    Args of the constructor:
        channels: number of channels.
        momentum: weight of a batch in the running statistics; None for their mean over
            all batches.
        epsilon: added to the variance.
    """

    def __init__(
        self, channels: int, *, momentum: float | None = 0.1, epsilon: float = 1e-5
    ) -> None:
        self.momentum = momentum
        self.epsilon = epsilon
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))
        self.mean = batch_stat(constant(0.0), (channels,))
        self.variance = batch_stat(constant(1.0), (channels,))
        self.count = batch_stat(constant(0), (), jnp.int32)

    def __call__(self, field: Field, context: Context) -> Field:
        field, after = batch_norm_field(
            field,
            self.scale[...],
            self.bias[...],
            self.running,
            training=context.training,
            momentum=self.momentum,
            epsilon=self.epsilon,
            axes=context.axes.data,
        )
        self.update(after)
        return field

    @property
    def running(self) -> RunningStatistics:
        """The running statistics that the variables store."""
        return RunningStatistics(self.mean[...], self.variance[...], self.count[...])

    def update(self, after: RunningStatistics | None) -> None:
        """Stores the running statistics after a batch."""
        assert after is not None, "running statistics were given"
        for name, value in vars(after).items():
            getattr(self, name)[...] = _as_invarying(value)


def _as_invarying(x: Array) -> Array:
    """Casts an array with equal values on all devices from varying to invarying.

    Weights have a varying type in a training step, so statistics computed from them
    are varying, too, although their values are equal.
    """
    axes = tuple(sorted(varying_axes(x)))
    return lax.pmax(x, axes) if axes else x


def no_statistics_error(module: nnx.Module) -> ValueError:
    """Returns the error for a forward pass that was given no running statistics."""
    num = sum(isinstance(node, BatchNorm) for _, node in nnx.iter_modules(module))
    what = f"{num} batch norms" if num else "layers of experts"
    return ValueError(
        f"the model has {what}; give their running statistics: "
        'apply(..., batch_stats=model_state["batch_stats"])'
    )
