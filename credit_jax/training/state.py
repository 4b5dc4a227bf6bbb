"""The state of a training run: one pytree, split over the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.model_state import BATCH_STATS, ModelState
from credit_jax.parallel.compiler import is_outermost
from credit_jax.parallel.joint import joint
from credit_jax.parallel.params.frozen import trainable
from credit_jax.parallel.params.packing import packed_param_specs
from credit_jax.training.ema import wide_statistics, with_averaged_statistics
from credit_jax.training.loss_scale import LossScale
from credit_jax.training.loss_state import LossState
from credit_jax.training.optimizer_state import optimizer_state_specs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything that a training step updates.

    The leaves are arrays, or PartitionSpecs, shardings or shapes of them.

    Attributes:
        micro_step: micro-batches seen, int32; the index of per-batch schedules.
        update_step: optimizer updates, int32, including those skipped in float16.
        params: parameters before spectral norm, by path; the small ones are packed into
            one vector (`parallel.params.packing`).
        model_state: of spectral norm and batch norms (`nn.model_state`).
        opt_state: of the optimizer, like the params that are not frozen.
        ema: averaged parameters, like params, or None.
        ema_stats: averaged running statistics of batch norms, float32, or None.
        loss_scale: of float16, see `training.loss_scale`, or None.
        loss_state: trained parameters of the loss, see `training.loss_state`, or None.
        key: of dropout; each micro-batch folds its number into it.
    """

    micro_step: Any
    update_step: Any
    params: Any
    model_state: Any
    opt_state: Any
    ema: Any
    ema_stats: Any
    loss_scale: Any
    loss_state: Any
    key: Any

    @property
    def evaluation_params(self) -> Any:
        """The parameters for validation and forecasts: the average if there is one."""
        return self.params if self.ema is None else self.ema

    @property
    def evaluation_model_state(self) -> Any:
        """The model state for validation and forecasts, statistics averaged if any."""
        return with_averaged_statistics(self.model_state, self.ema_stats)


def state_specs(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    *,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """PartitionSpec of every leaf of the state.

    Args:
        model, optimizer, ema, loss_state: as for `init_state`.

    Raises:
        ValueError: the optimizer's state is not elementwise; `optimizer_state_specs`.
    """
    param_specs = packed_param_specs(model.model_def.param_specs)
    params, whole = model.packed_specs, PartitionSpec()
    shapes = {
        path: jax.ShapeDtypeStruct(d.shape, d.dtype)
        for path, d in trainable(param_specs, param_specs).items()
    }
    opt_state = optimizer_state_specs(
        optimizer, shapes, params, model.parallel_config.mesh
    )
    scaled = model.parallel_config.precision.needs_scaling
    return TrainState(
        micro_step=whole,
        update_step=whole,
        params=params,
        model_state=model.model_state_specs,
        opt_state=opt_state,
        ema=params if ema else None,
        ema_stats=model.model_state_specs[BATCH_STATS] if ema else None,
        loss_scale=LossScale(whole, whole) if scaled else None,
        loss_state=jax.tree.map(lambda leaf: whole, loss_state),
        key=whole,
    )


def shardings(specs: Any, mesh: Mesh) -> Any:
    """NamedSharding of every leaf of a tree of specs, for placing it on `mesh`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def init_state(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    key: Array,
    *,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """A new state; every device initializes only its own shards.

    Args:
        model: the model on its mesh.
        optimizer: makes its state from local parameters.
        key: typed PRNG key; the same key gives the same state on every mesh.
        ema: whether to keep averaged parameters.
        loss_state: of `init_loss_state`, if the loss has parameters.
    """
    alone = is_outermost(key)

    def init(key: Array) -> TrainState:
        params, model_state, noise_key = model.local_init(key, alone=alone)
        return state_of(
            model,
            params,
            model_state,
            optimizer,
            noise_key,
            ema=ema,
            loss_state=loss_state,
        )

    body = model.parallel_config.shard_map(
        init,
        in_specs=PartitionSpec(),
        out_specs=state_specs(model, optimizer, ema=ema, loss_state=loss_state),
    )
    return joint(jax.jit(body), model.mesh)(key)


def state_of(
    model: ParallelModel,
    params: Weights,
    model_state: ModelState,
    optimizer: optax.GradientTransformation,
    key: Array,
    *,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """The state before the first step of a run from given weights.

    Args:
        model: of these weights.
        params: packed, whole arrays or local shards.
        model_state: see `nn.model_state`.
        optimizer, key, ema, loss_state: as for `init_state`.
    """
    trained = trainable(params, model.model_def.param_specs)
    scaled = model.parallel_config.precision.needs_scaling
    return TrainState(
        micro_step=jnp.zeros((), jnp.int32),
        update_step=jnp.zeros((), jnp.int32),
        params=params,
        model_state=model_state,
        opt_state=optimizer.init(trained),
        ema=jax.tree.map(jnp.copy, params) if ema else None,
        ema_stats=wide_statistics(model_state) if ema else None,
        loss_scale=LossScale.fresh() if scaled else None,
        loss_state=loss_state,
        key=key,
    )


def place_state(state: TrainState, specs: TrainState, mesh: Mesh) -> TrainState:
    """Splits a state of whole host arrays over `mesh`."""
    return jax.tree.map(jax.device_put, state, shardings(specs, mesh))
