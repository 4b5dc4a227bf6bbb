"""AdamW with CREDIT's settings on shards inside `shard_map`, and loss scaling.

AdamW is elementwise, so every device updates its own shards. Only clipping needs the
whole gradient; its norm counts every shard once. The learning rate is a function of the
micro-batches seen, not of the updates, and is an argument of the update.

CREDIT steps its per-batch schedulers after every micro-batch, whether or not the
optimizer stepped, and its per-epoch ones at the end of an epoch. Index 0 is the first
micro-batch. All arithmetic of rates is float32.

Small gradients underflow in float16. The loss is multiplied by a scale before the
backward pass and the gradient divided by it after. If the gradient overflows, the
update is skipped and the scale halved; after 2000 finite gradients in a row it doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from credit_jax.checkpoint.store import ADAM
from credit_jax.config.trainer import TrainerConfig
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.ops.packed import pack
from credit_jax.parallel.collectives import psum_varying
from credit_jax.parallel.params.packing import Packing


class UniformTransformation(optax.GradientTransformationExtraArgs):
    """A transformation that treats all parameters and elements alike."""

    # A step gives it the small parameters as one vector (`parallel.params.packing`),
    # which takes a launch for each operation in place of hundreds. Others are given
    # every parameter under its own path.
    __slots__ = ()


def update_by_path(
    optimizer: optax.GradientTransformation, packing: Packing
) -> Callable[..., tuple[dict[str, Array], Any]]:
    """The checked `update` of any optimizer, for packed gradients and parameters."""
    update = optax.with_extra_args_support(optimizer).update
    is_uniform = isinstance(optimizer, UniformTransformation)
    by_path = dict if is_uniform else packing.unpack

    def updates(
        grads: Mapping[str, Array],
        state: Any,
        params: Mapping[str, Array],
        **extra: Any,
    ) -> tuple[dict[str, Array], Any]:
        named = by_path(params)
        changes, state = update(by_path(grads), state, named, **extra)
        check_updates(changes, named)
        return changes if is_uniform else packing.pack(changes), state  # pyright: ignore

    return updates


def optimizer_state_specs(
    optimizer: optax.GradientTransformation,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    specs: Mapping[str, PartitionSpec],
    mesh: Mesh,
) -> PyTree[PartitionSpec]:
    """PartitionSpec of every leaf of an optimizer's state."""
    local = {
        path: jax.ShapeDtypeStruct(
            NamedSharding(mesh, specs[path]).shard_shape(leaf.shape), leaf.dtype
        )
        for path, leaf in shapes.items()
    }
    full = jax.eval_shape(optimizer.init, dict(shapes))
    shards = jax.eval_shape(optimizer.init, local)

    def spec_of(path: tuple[Any, ...], full: Any, shard: Any) -> PartitionSpec:
        keys = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        named = [key for key in keys if key in shapes]
        # A leaf with the path and the shape of a parameter is sharded like it.
        if named and full.shape == shapes[named[-1]].shape:
            return specs[named[-1]]
        # Any other is replicated: its shape does not depend on the sharding, unlike
        # that of Adafactor's sums over rows.
        if full.shape == shard.shape:
            return PartitionSpec()
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        raise ValueError(
            f"the optimizer's state {name} has the shape {full.shape} for whole "
            f"parameters and {shard.shape} for the shards of a device; expected that "
            "of its parameter (elementwise state, as Adam's moments) or one that does "
            "not depend on the mesh (a count). Take an optimizer with elementwise "
            "state, or a mesh that splits no parameter"
        )

    return jax.tree_util.tree_map_with_path(spec_of, full, shards)


def check_updates(updates: Any, params: Mapping[str, Array]) -> None:
    """Checks that each update is the same on all devices that hold the same shard."""
    for path, update in updates.items():
        axes = varying_axes(update) - varying_axes(params[path])
        if axes:
            raise ValueError(
                f"the optimizer's update of {path!r} differs over the mesh axes "
                f"{sorted(axes)}, over which the parameter is replicated: it was "
                "computed from local shards of other parameters, as "
                "optax.clip_by_global_norm does. Take credit_jax.training.optimizer."
                "clip_by_global_norm, or transformations that are elementwise"
            )


BETAS = (0.9, 0.95)
EPSILON = 1e-8
# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6
# Fewest elements of a gradient, or of that of a block, whose squares are summed by
# themselves: on an H100 a copy takes longer than the launches of a sum.
_LARGE = 2**18


def build_optimizer(trainer: TrainerConfig) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer of the model: clipping by the global norm, then AdamW."""
    # Clips to the norm itself, as CREDIT does, which changes next to nothing.
    dynamic = trainer.grad_max_norm == "dynamic"
    max_norm = None if dynamic else trainer.clip_norm
    return adamw(weight_decay=trainer.weight_decay, max_norm=max_norm)


def build_loss_optimizer(
    trainer: TrainerConfig,
) -> optax.GradientTransformationExtraArgs:
    """AdamW for the parameters of a loss: not clipped, at the rate of the model."""
    # CREDIT's `cosine-annealing-restarts` does not see them: the rate stays.
    follows = trainer.schedule is None or trainer.schedule.reaches_loss
    return adamw(
        weight_decay=trainer.weight_decay,
        learning_rate=None if follows else trainer.learning_rate,
    )


def adamw(
    *,
    weight_decay: float = 0.0,
    max_norm: float | None = 0.0,
    learning_rate: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """torch.optim.AdamW after clipping to a norm; 0 is none, None the norm itself."""

    def by_argument(
        updates: PyTree[Array],
        state: Any,
        params: PyTree[Array] | None = None,
        *,
        learning_rate: Float[Array, ""] | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree[Array], Any]:
        del params, extra_args
        if learning_rate is None:
            raise ValueError(
                "the optimizer got no learning rate; pass `schedule` to "
                "make_train_step, or `learning_rate=` to its update"
            )
        return jax.tree.map(lambda u: -learning_rate * u, updates), state

    rate = optax.GradientTransformationExtraArgs(optax.init_empty_state, by_argument)
    if learning_rate is not None:
        rate = optax.scale(-learning_rate)
    clips = max_norm is None or max_norm > 0
    clipping = clip_by_global_norm(max_norm) if clips else optax.identity()
    # p <- p (1 - lr wd) - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
    chain = optax.named_chain(
        ("clip", clipping),
        (ADAM, optax.scale_by_adam(*BETAS, eps=EPSILON)),
        ("decay", optax.add_decayed_weights(weight_decay)),
        ("rate", rate),
    )
    return UniformTransformation(*chain)


def clip_by_global_norm(
    max_norm: float | None,
) -> optax.GradientTransformationExtraArgs:
    """`optax.clip_by_global_norm` of a sharded gradient, as torch divides."""

    def update(
        updates: PyTree[Array],
        state: Any,
        params: PyTree[Array] | None = None,
        *,
        grad_norm: Float[Array, ""] | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree[Array], Any]:
        del params, extra_args
        # In a chain it comes before what changes the gradient, of which `grad_norm` is.
        norm = global_norm(updates) if grad_norm is None else grad_norm
        largest = norm if max_norm is None else max_norm
        factor = jnp.minimum(1.0, largest / (norm + CLIP_EPSILON))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def global_norm(grads: PyTree[Array]) -> Float[Array, ""]:
    """Euclidean norm of the full gradient on every device, at least in float32."""
    # Leaves are summed over exactly the mesh axes that they vary over, so that each
    # shard counts once. Small leaves are one vector, as a sum of its own for each takes
    # longer than the copy.
    groups: dict[tuple[str, ...], list[Array]] = {}
    for leaf in jax.tree.leaves(grads):
        axes = tuple(sorted(varying_axes(leaf)))
        wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        groups.setdefault(axes, []).append(wide)
    parts = []
    for leaves in groups.values():
        arrays = [leaf for leaf in leaves if not _is_small(leaf)]
        small = [leaf for leaf in leaves if _is_small(leaf)]
        arrays += [pack(small)] if small else []
        squares = [jnp.sum(jnp.square(array)) for array in arrays]
        parts.append(psum_varying(jnp.sum(jnp.stack(squares))))
    return jnp.sqrt(jnp.sum(jnp.stack(parts)))


def _is_small(gradient: Array) -> bool:
    """Whether a gradient is small, for any number of blocks along its first dim."""
    shape = gradient.shape
    return math.prod(shape[1:] if len(shape) > 2 else shape) < _LARGE


def build_schedule(trainer: TrainerConfig, *, batches_per_epoch: int) -> optax.Schedule:
    """The schedule of the `trainer` section: micro-batches seen -> learning rate."""
    schedule, base = trainer.schedule, trainer.learning_rate
    if schedule is None or schedule.keeps_rate:
        # Of `plateau` the rate before it is reduced.
        return optax.constant_schedule(base)
    size = max(batches_per_epoch, 1) if schedule.by_epoch else 1

    def by_batch(step: Any) -> ArrayLike:
        return schedule.rate(base, step if size == 1 else step // size, jnp)

    return by_batch


def with_first_rate_at(
    schedule: optax.Schedule, micro_step: int | None, rate: float | None = None
) -> optax.Schedule:
    """The schedule with another rate, or its first one, at one micro-batch."""
    # CREDIT builds the schedule after it has loaded the optimizer, which resets the
    # rate: the first micro-batch of a resumed run trains at the first rate.
    if micro_step is None:
        return schedule

    def changed(step: ArrayLike) -> Array:
        first = schedule(0) if rate is None else rate
        return jnp.where(step == micro_step, first, schedule(step))

    return changed


INITIAL_SCALE = 2.0**16
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """The state of loss scaling."""

    scale: Any  # factor of the loss, float32
    good_updates: Any  # updates since the scale changed, int32

    def after(self, finite: Bool[Array, ""]) -> LossScale:
        count = jnp.where(finite, self.good_updates + 1, 0)
        grows = count == INTERVAL
        factor = jnp.where(grows, GROWTH, jnp.where(finite, 1.0, BACKOFF))
        return LossScale(
            (self.scale * factor).astype(jnp.float32), jnp.where(grows, 0, count)
        )


def unscale(grads: PyTree[Array], state: LossScale | None) -> PyTree[Array]:
    """The gradient of the loss from that of the scaled loss."""
    if state is None:
        return grads
    return jax.tree.map(lambda g: g / state.scale, grads)


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether every number of a tree is finite."""
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(finite).all() if finite else jnp.array(True)


def keep_if(finite: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` if the gradient was finite, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
