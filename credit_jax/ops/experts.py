"""Mixtures of experts on one device: routing, the experts' layers, and their losses.

Every token goes to the experts that its router ranks highest. There is no capacity
limit and no token is dropped, so the result does not depend on how tokens are grouped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

Chosen = Int[Array, "tokens choice"]

Weights = Float[Array, "tokens choice"]


def choose_experts(
    logits: Float[Array, "tokens experts"], count: int
) -> tuple[Weights, Chosen]:
    """Returns descending weights, and the indices of the `count` likeliest experts."""
    probabilities = jax.nn.softmax(logits, -1)
    # Ties go to the expert of lower index.
    chosen = lax.top_k(lax.stop_gradient(probabilities), count)[1].astype(jnp.int32)
    # The gradient of what top_k returns, a scatter, is sorted on GPUs; this is a sum.
    is_chosen = jax.nn.one_hot(chosen, logits.shape[1], dtype=bool)
    values = jnp.sum(jnp.where(is_chosen, probabilities[:, None], 0.0), -1)
    # The softmax is over all experts; the weights of each token sum to one.
    return values / values.sum(-1, keepdims=True), chosen


def balance_loss(
    load: Float[Array, "*layers experts"], probability: Float[Array, "*layers experts"]
) -> Float[Array, " *layers"]:
    """Returns num_experts * sum(load * probability), which is 1 if both are uniform."""
    # Switch Transformers (arXiv 2101.03961), equation 4, with coefficient 1: `load` is
    # the fraction of all choices that each expert received, `probability` that of the
    # router, averaged over all tokens.
    even = load.shape[-1]
    return even * jnp.sum(lax.stop_gradient(load) * probability, -1)


@dataclass(frozen=True)
class Dispatch:
    """Choices of all tokens, sorted by expert, for a contiguous range of experts."""

    # (places,), flat index of the choice at each sorted place, token * choices +
    # choice.
    order: Int[Array, " places"]
    # (experts,), number of choices of each expert of the range.
    sizes: Int[Array, " experts"]
    # (places,), index within the range of the expert at each sorted place; the last
    # index where the choice is outside of the range.
    expert: Int[Array, " places"]
    # (places, 1), whether the choice at each sorted place is in the range.
    is_local: Bool[Array, "places 1"]
    choices: int  # number of experts for each token

    @classmethod
    def of(cls, chosen: Chosen, num: int, first: Array | int = 0) -> Dispatch:
        """Returns the dispatch to the experts `first` to `first + num - 1`."""
        local = chosen.reshape(-1) - first
        # Choices of experts outside of the range come last.
        group = jnp.where((local >= 0) & (local < num), local, num)
        order = jnp.argsort(group, stable=True).astype(jnp.int32)
        sizes = jnp.sum(group[:, None] == jnp.arange(num)[None], 0, dtype=jnp.int32)
        sorted_group = group[order]
        expert = jnp.minimum(sorted_group, num - 1).astype(jnp.int32)
        return cls(order, sizes, expert, (sorted_group < num)[:, None], chosen.shape[1])

    def spread(
        self, x: Shaped[Array, "tokens channel"]
    ) -> Shaped[Array, "places channel"]:
        """Returns the row of the token at each sorted place."""
        shape = x.shape[0], self.choices, x.shape[1]
        by_choice = jnp.broadcast_to(x[:, None], shape).reshape(-1, x.shape[1])
        return _permuted(by_choice, self.order)

    def of_expert(
        self, per_expert: Float[Array, "experts out"]
    ) -> Float[Array, "places out"]:
        """Returns the row of the expert at each sorted place."""
        dtype = per_expert.dtype
        share = jax.nn.one_hot(self.expert, per_expert.shape[0], dtype=dtype)
        # The gradient of a product is one, too; that of a gather is a scatter of all
        # places to few rows.
        return jnp.matmul(share, per_expert, precision="highest")

    def product(
        self,
        x: Float[Array, "places channel"],
        kernels: Float[Array, "experts channel out"],
        dtype: Any = None,
    ) -> Float[Array, "places out"]:
        """Returns each row times the kernel of its expert; zero where not local."""
        wide = dtype or x.dtype
        # XLA has a kernel for this grouped product on TPU only; elsewhere every row is
        # multiplied by every kernel.
        y = lax.ragged_dot(x, kernels, self.sizes, preferred_element_type=wide)
        return jnp.where(self.is_local, y, jnp.zeros((), y.dtype))

    def combine(
        self, y: Float[Array, "places out"], weights: Weights
    ) -> Float[Array, "tokens out"]:
        """Returns the weighted sum over the choices of each token, in their order."""
        by_choice = _permuted(y, jnp.argsort(self.order)).reshape(*weights.shape, -1)
        return jnp.sum(by_choice * weights[..., None].astype(y.dtype), 1)


def _permuted(
    rows: Shaped[Array, "places channel"], order: Int[Array, " places"]
) -> Shaped[Array, "places channel"]:
    """Returns rows in another order, each of them once."""
    # XLA sorts what the gradient of a gather adds, on GPUs, unless it knows that no two
    # values are added to one.
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")


def expert_biases(
    weights: Weights,
    chosen: Chosen,
    bias: Float[Array, "experts out"],  # of the experts from `first` on
    first: Array | int = 0,
) -> Float[Array, "tokens out"]:
    """Returns the weighted sum of the biases of each token's experts."""
    experts = jnp.arange(bias.shape[0])
    # Experts outside of the range that `bias` covers contribute zero.
    here = chosen[..., None] - first == experts[None, None]
    shares = jnp.sum(jnp.where(here, weights[..., None], 0.0), 1)
    return jnp.matmul(shares.astype(bias.dtype), bias, precision="highest")
