"""AdamW as CREDIT uses it, on local shards inside `shard_map`.

AdamW is elementwise, so every device updates the shard it holds. Only the clipping
needs the whole gradient: its norm is the sum of squares over all shards of every leaf,
each counted once (`psum` over exactly the mesh axes that the leaf differs over).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from credit_jax.config.trainer import TrainerConfig
from credit_jax.parallel.collectives import psum_varying

BETAS = (0.9, 0.95)
EPSILON = 1e-8
# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6


class AdamWState(NamedTuple):
    """State of the optimiser.

    Attributes:
        num_updates: updates done, int32 scalar.
        mean: running mean of the gradient, like the parameters.
        square: running mean of its square, like the parameters.
    """

    num_updates: Int[Array, ""]
    mean: PyTree[Array]
    square: PyTree[Array]


@dataclass(frozen=True)
class AdamW:
    """torch.optim.AdamW with its gradient clipped to a global norm, like optax's.

    `p <- p (1 - lr wd) - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)`

    Attributes:
        weight_decay: factor of the decay, applied to every parameter.
        max_norm: largest norm of the gradient; 0 for no clipping.
    """

    weight_decay: float = 0.0
    max_norm: float = 0.0

    def init(self, params: PyTree[Array]) -> AdamWState:
        """The state before the first update."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        again = jax.tree.map(jnp.zeros_like, params)
        return AdamWState(jnp.zeros((), jnp.int32), zeros, again)

    def update(
        self,
        grads: PyTree[Array],
        state: AdamWState,
        params: PyTree[Array],
        learning_rate: Float[Array, ""],
        *,
        grad_norm: Float[Array, ""] | None = None,
    ) -> tuple[PyTree[Array], AdamWState]:
        """One update.

        Args:
            grads: gradient of the mean loss, local shards.
            state: of the last update.
            params: local shards.
            learning_rate: scalar.
            grad_norm: `global_norm(grads)`, if the caller has it already.

        Returns:
            What to add to the parameters (`optax.apply_updates`), and the new state.
        """
        if self.max_norm > 0:
            norm = global_norm(grads) if grad_norm is None else grad_norm
            grads = clip(grads, norm, self.max_norm)
        state = _moments(grads, state)
        first, second = _bias_corrections(state.num_updates)

        def change(mean: Array, square: Array, param: Array) -> Array:
            step = (mean / first) / (jnp.sqrt(square / second) + EPSILON)
            return -learning_rate * (step + self.weight_decay * param)

        return jax.tree.map(change, state.mean, state.square, params), state


def build_optimiser(trainer: TrainerConfig) -> AdamW:
    """Clipping by the global norm, then AdamW (betas 0.9, 0.95; all parameters decay).

    Args:
        trainer: `weight_decay` and `grad_max_norm` (0: no clipping; "dynamic": CREDIT
            clips to the norm that it has just measured, which changes nothing).
    """
    return AdamW(weight_decay=trainer.weight_decay, max_norm=trainer.clip_norm)


def _moments(grads: PyTree[Array], state: AdamWState) -> AdamWState:
    b1, b2 = BETAS
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    square = jax.tree.map(
        lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.square, grads
    )
    return AdamWState(state.num_updates + 1, mean, square)


def _bias_corrections(count: Int[Array, ""]) -> tuple[Array, Array]:
    """`1 - b^count` for both betas; `expm1` keeps it precise for small counts."""
    first, second = (-jnp.expm1(count * math.log(b)) for b in BETAS)
    return first, second


def global_norm(grads: PyTree[Array]) -> Float[Array, ""]:
    """Euclidean norm of the whole gradient, float32, the same on every device.

    Inside `shard_map` the leaves are local shards; each shard is counted once.
    """
    squares: dict[tuple[str, ...], list[Array]] = {}
    for leaf in jax.tree.leaves(grads):
        total = jnp.sum(jnp.square(leaf.astype(jnp.float32)))
        axes = tuple(sorted(jax.typeof(leaf).manual_axis_type.varying))
        squares.setdefault(axes, []).append(total)
    parts = [psum_varying(jnp.sum(jnp.stack(group))) for group in squares.values()]
    return jnp.sqrt(jnp.sum(jnp.stack(parts)))


def clip(
    grads: PyTree[Array], norm: Float[Array, ""], max_norm: float
) -> PyTree[Array]:
    """Scale the gradient down to `max_norm` where its `norm` is above it."""
    factor = jnp.minimum(1.0, max_norm / (norm + CLIP_EPSILON))
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)
