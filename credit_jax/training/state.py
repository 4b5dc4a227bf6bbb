"""The state of a training run: one pytree, split over the mesh.

Parameters of a loss are in it, too, replicated on every device: the loss `base` with
`var_weighting: learnable`, for example, has the logarithms of variances.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from credit_jax.checkpoint.store import ADAM
from credit_jax.losses import Loss, initial_parameters
from credit_jax.models import parallel_model
from credit_jax.models.arguments import name_problems
from credit_jax.models.model_def import Weights
from credit_jax.nn.parameters import (
    BATCH_STATS,
    ModelState,
    wide_statistics,
    with_averaged_statistics,
)
from credit_jax.parallel.compiler import is_outermost
from credit_jax.parallel.joint import joint
from credit_jax.parallel.params.packing import Packing, pack_tree, unpack_on_host
from credit_jax.parallel.params.spec import trainable
from credit_jax.training.optimizer import (
    INITIAL_SCALE,
    LossScale,
    UniformTransformation,
    optimizer_state_specs,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossState:
    """Parameters of a loss and the state of their optimizer."""

    params: Any
    opt_state: Any


def init_loss_state(
    loss: Loss, optimizer: optax.GradientTransformation | None
) -> LossState | None:
    """The state before the first step; None for a loss without parameters."""
    params = initial_parameters(loss)
    if not params:
        return None
    if optimizer is None:
        raise ValueError(
            f"the loss has parameters of its own ({', '.join(params)}); give "
            "make_train_step a loss_optimizer, and init_state the loss_state of "
            "init_loss_state"
        )
    return LossState(params, optimizer.init(params))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything that a training step updates.

    The leaves are arrays, or PartitionSpecs, shardings or shapes of them. `params`,
    `opt_state` and `ema` have every parameter under its own path. The fields whose
    names begin with "stored" are these as a step updates them, the small parameters
    packed into one vector (`parallel.params.packing`).

    Attributes:
        packing: layout of that vector.
        micro_step: micro-batches seen, int32; the index of per-batch schedules.
        update_step: optimizer updates, int32, including those skipped in float16.
        stored_params: see `params`.
        model_state: state of spectral norm and batch norms (`nn.parameters`).
        stored_opt_state: see `opt_state`.
        stored_ema: average of the parameters that are not frozen; see `ema`.
        ema_stats: averaged running statistics of batch norms, float32, or None.
        loss_scale: loss scale of float16, see `training.optimizer`, or None.
        loss_state: trained parameters of the loss, see `training.state`, or None.
        key: key of dropout; each micro-batch folds its number into it.
    """

    packing: Packing = field(metadata={"static": True})
    micro_step: Any
    update_step: Any
    stored_params: Any
    model_state: Any
    stored_opt_state: Any
    stored_ema: Any
    ema_stats: Any
    loss_scale: Any
    loss_state: Any
    key: Any

    @property
    def params(self) -> Any:
        """The parameters before spectral norm, by path."""
        return self.packing.unpack(self.stored_params)

    @property
    def opt_state(self) -> Any:
        """The state of the optimizer, for the parameters that are not frozen."""
        return self.packing.unpack_tree(self.stored_opt_state)

    @property
    def ema(self) -> Any:
        """The averaged parameters, by path, and those that are frozen, or None."""
        if self.stored_ema is None:
            return None
        return self.packing.unpack({**self.stored_params, **self.stored_ema})

    @property
    def evaluated(self) -> tuple[Any, Any]:
        """Parameters and model state for validation and forecasts, averaged if any."""
        params = self.params if self.stored_ema is None else self.ema
        return params, with_averaged_statistics(self.model_state, self.ema_stats)


def state_specs(
    model: parallel_model.ParallelModel,
    optimizer: optax.GradientTransformation,
    *,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """PartitionSpec of every leaf of the state."""
    param_specs, packing = model.model_def.param_specs, parallel_model.packing_of(model)
    params, full = parallel_model.packed_specs(model), PartitionSpec()
    optimized, specs = param_specs, model.specs
    if isinstance(optimizer, UniformTransformation):
        optimized, specs = packing.param_specs(param_specs), params
    shapes = {
        path: jax.ShapeDtypeStruct(d.shape, d.dtype)
        for path, d in trainable(optimized, param_specs).items()
    }
    opt_state = optimizer_state_specs(optimizer, shapes, specs, model.mesh)
    scaled = model.parallel_config.precision.needs_scaling
    return TrainState(
        packing=packing,
        micro_step=full,
        update_step=full,
        stored_params=params,
        model_state=model.model_state_specs,
        stored_opt_state=opt_state,
        stored_ema=trainable(params, param_specs) if ema else None,
        ema_stats=model.model_state_specs[BATCH_STATS] if ema else None,
        loss_scale=LossScale(full, full) if scaled else None,
        loss_state=jax.tree.map(lambda leaf: full, loss_state),
        key=full,
    )


def check_state(state: Any, specs: TrainState) -> None:
    """Checks that a training state is that of a step, by its arrays' paths and dims."""
    if not isinstance(state, TrainState):
        raise ValueError(
            f"the state is a {type(state).__name__}; expected the TrainState of "
            "init_state(model, optimizer, key), or that of the step before"
        )
    # As in every step but a wrong one: paths as text take longer than a small update.
    if jax.tree.structure(state) == jax.tree.structure(
        specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    ):
        return
    problems = name_problems(_paths(state), _paths(specs))
    if state.packing != specs.packing:
        problems.append("the parameters have other shapes")
    if problems:
        listed = "\n  ".join(problems[:5])
        raise ValueError(
            f"the state is not that of this step:\n  {listed}\nMake it with init_state "
            "of the same model, optimizer, ema and loss_state"
        )


def _paths(tree: Any) -> dict[str, Any]:
    """Path -> array of a state, or its spec."""
    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def init_state(
    model: parallel_model.ParallelModel,
    optimizer: optax.GradientTransformation,
    key: Array,
    *,
    weights: tuple[Weights, ModelState] | None = None,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """A new state; every device initializes only its own shards.

    Args:
        model: the model on its mesh.
        optimizer: makes its state from local parameters, a flat dict by path.
        key: typed PRNG key; the same key gives the same state on every mesh.
        weights: parameters by path and model state to begin with, as returned by
            `restore`, where the key is that of dropout and noise; None for those of
            `model.init(key)`.
        ema: whether to keep averaged parameters.
        loss_state: state, as returned by `init_loss_state`, if the loss has parameters.

    >>> state = credit_jax.init_state(model, optax.sgd(0.1), jax.random.key(0))
    >>> int(state.micro_step), sorted(state.params)
    (0, ['linear/kernel'])
    """
    alone = is_outermost(key)
    if weights is None and model.model_def.initial:
        weights = model.init(key)

    def init(key: Array, weights: Any) -> TrainState:
        noise_key = key
        if weights is None:
            params, model_state, noise_key = model.local_init(key, alone=alone)
        else:
            params, model_state = weights
        return state_of(
            model,
            params,
            model_state,
            optimizer,
            noise_key,
            ema=ema,
            loss_state=loss_state,
        )

    weight_specs: Any = PartitionSpec()
    if weights is not None:
        weight_specs = model.specs, model.model_state_specs
    body = model.parallel_config.shard_map(
        init,
        in_specs=(PartitionSpec(), weight_specs),
        out_specs=state_specs(model, optimizer, ema=ema, loss_state=loss_state),
    )
    return joint(jax.jit(body), model.mesh)(key, weights)


def state_of(
    model: parallel_model.ParallelModel,
    params: Weights,
    model_state: ModelState,
    optimizer: optax.GradientTransformation,
    key: Array,
    *,
    ema: bool = False,
    loss_state: LossState | None = None,
) -> TrainState:
    """The state before the first step from weights, whole arrays or local shards."""
    param_specs, packing = model.model_def.param_specs, parallel_model.packing_of(model)
    packed = packing.pack(params)
    uniform = isinstance(optimizer, UniformTransformation)
    trained = trainable(packed if uniform else params, param_specs)
    averaged = trainable(packed, param_specs)
    scaled = model.parallel_config.precision.needs_scaling
    # Copies: the loop donates the state, which may have an array once.
    zero, scale = jnp.zeros((), jnp.int32), jnp.float32(INITIAL_SCALE)
    return TrainState(
        packing=packing,
        micro_step=zero,
        update_step=jnp.copy(zero),
        stored_params=packed,
        model_state=model_state,
        stored_opt_state=optimizer.init(trained),
        stored_ema=jax.tree.map(jnp.copy, averaged) if ema else None,
        ema_stats=wide_statistics(model_state) if ema else None,
        loss_scale=LossScale(scale, jnp.copy(zero)) if scaled else None,
        loss_state=loss_state,
        key=key,
    )


def place_state(state: TrainState, specs: TrainState, mesh: Mesh) -> TrainState:
    """Splits a state of whole host arrays over `mesh`."""
    return jax.tree.map(jax.device_put, state, parallel_model.shardings(specs, mesh))


def with_moments(state: TrainState, moments: optax.ScaleByAdamState) -> TrainState:
    """A state of `adamw` with moments that were those of another one."""
    like, packing = state.stored_opt_state, state.packing
    opt_state = unpack_on_host(like, packing)
    adam = opt_state[ADAM]
    parts: Any = zip(adam[1:], moments[1:], strict=True)  # mu and nu
    mu, nu = ({**full, **changed} for full, changed in parts)
    opt_state[ADAM] = adam._replace(count=moments.count, mu=mu, nu=nu)
    packed = pack_tree(opt_state, like, packing)
    placed = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), packed, like)
    return replace(state, stored_opt_state=placed)


def effective_decay(num_updates: Int[Array, ""], decay: float) -> Float[Array, ""]:
    """`min(decay, (1 + s) / (10 + s))` of s updates done, with the present one."""
    steps = jnp.asarray(num_updates, jnp.float32)
    return jnp.minimum(jnp.float32(decay), (1.0 + steps) / (10.0 + steps))


def update_ema(
    ema: PyTree[Array],
    params: PyTree[Array],
    num_updates: Int[Array, ""],
    decay: float,
) -> PyTree[Array]:
    """`decay_s * ema + (1 - decay_s) * params`, on local shards, in ema's dtype."""
    # Spectral-norm vectors are not averaged, as in CREDIT: the mean of unit vectors is
    # not one.
    keep = effective_decay(num_updates, decay)
    return jax.tree.map(
        lambda e, p: keep * e + (1.0 - keep) * p.astype(e.dtype), ema, params
    )
