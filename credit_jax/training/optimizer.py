"""AdamW as CREDIT uses it, on local shards inside `shard_map`.

AdamW is elementwise, so every device updates the shard it holds. Only the clipping
needs the whole gradient: its norm is the sum of squares over all shards of every leaf,
each counted once (`psum` over exactly the mesh axes that the leaf differs over).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from credit_jax.config.trainer import TrainerConfig
from credit_jax.parallel.collectives import psum_varying

BETAS = (0.9, 0.95)
EPSILON = 1e-8
# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
CLIP_EPSILON = 1e-6


@dataclass(frozen=True)
class AdamW:
    """torch.optim.AdamW on optax's Adam, its gradient clipped to a global norm.

    `p <- p (1 - lr wd) - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)`

    Attributes:
        weight_decay: factor of the decay, applied to every parameter.
        max_norm: largest norm of the gradient; 0 for no clipping.
    """

    weight_decay: float = 0.0
    max_norm: float = 0.0

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(*BETAS, eps=EPSILON)

    def init(self, params: PyTree[Array]) -> optax.ScaleByAdamState:
        """The state before the first update: count, mu and nu."""
        state = self._adam.init(params)
        assert isinstance(state, optax.ScaleByAdamState)
        return state

    def update(
        self,
        grads: PyTree[Array],
        state: optax.ScaleByAdamState,
        params: PyTree[Array],
        learning_rate: Float[Array, ""],
        *,
        grad_norm: Float[Array, ""] | None = None,
    ) -> tuple[PyTree[Array], Any]:
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
        directions, new_state = self._adam.update(grads, state)

        def change(direction: Array, param: Array) -> Array:
            return -learning_rate * (direction + self.weight_decay * param)

        return jax.tree.map(change, directions, params), new_state


def build_optimizer(trainer: TrainerConfig) -> AdamW:
    """Clipping by the global norm, then AdamW (betas 0.9, 0.95; all parameters decay).

    Args:
        trainer: `weight_decay` and `grad_max_norm` (0: no clipping; "dynamic": CREDIT
            clips to the norm that it has just measured, which changes nothing).
    """
    return AdamW(weight_decay=trainer.weight_decay, max_norm=trainer.clip_norm)


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
