"""Dynamic loss scaling for float16, as torch.amp.GradScaler does it in CREDIT's `amp`.

Small gradients underflow in float16. The loss is multiplied by a scale before the
backward pass and the gradient divided by it after. If the gradient overflows, the
update is skipped and the scale halved; after 2000 finite gradients in a row it doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

INITIAL_SCALE = 2.0**16
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """The state of loss scaling.

    Attributes:
        scale: factor of the loss, float32.
        good_updates: updates since the scale changed, int32.
    """

    scale: Any
    good_updates: Any

    @classmethod
    def fresh(cls) -> LossScale:
        """The initial state."""
        return cls(jnp.float32(INITIAL_SCALE), jnp.zeros((), jnp.int32))

    def after(self, finite: Bool[Array, ""]) -> LossScale:
        """The state after an update.

        Args:
            finite: whether its gradient was finite.
        """
        count = jnp.where(finite, self.good_updates + 1, 0)
        grows = count == INTERVAL
        factor = jnp.where(grows, GROWTH, jnp.where(finite, 1.0, BACKOFF))
        return LossScale(
            (self.scale * factor).astype(jnp.float32), jnp.where(grows, 0, count)
        )


def loss_factor(state: LossScale | None) -> Float[Array, ""] | float:
    """Factor of the loss; 1 without loss scaling."""
    return 1.0 if state is None else state.scale


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
