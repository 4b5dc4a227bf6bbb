"""Mixtures of experts on one device: routing, the experts' layers, and their losses.

Every token goes to the experts that its router ranks highest; none is dropped, however
many choose one expert, so that the result does not depend on how tokens are grouped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def choose_experts(
    logits: Float[Array, "tokens experts"], count: int
) -> tuple[Float[Array, "tokens choice"], Int[Array, "tokens choice"]]:
    """The `count` most probable experts of each token, and their weights.

    The weights are probabilities of a softmax over all experts, divided by their sum.
    Of equally probable experts those of lower number are chosen.

    Args:
        logits: in float32 or wider.
        count: experts of a token.

    Returns:
        weights: of each choice, in falling order; they sum to one.
        chosen: numbers of the experts.
    """
    values, chosen = lax.top_k(jax.nn.softmax(logits, -1), count)
    return values / values.sum(-1, keepdims=True), chosen.astype(jnp.int32)


def balance_loss(
    load: Float[Array, "*layers experts"], probability: Float[Array, "*layers experts"]
) -> Float[Array, " *layers"]:
    """Experts x sum of load x probability; 1 where both are even, the least.

    Args:
        load: part of all choices that fell on each expert; constant in the gradient.
        probability: mean over all tokens.

    Reference: Switch Transformers (arXiv 2101.03961), equation 4.
    """
    even = load.shape[-1]
    return even * jnp.sum(lax.stop_gradient(load) * probability, -1)


@dataclass(frozen=True)
class Dispatch:
    """Choices of tokens, sorted by expert; choices of other experts come last.

    Attributes:
        order: number of the choice, token * choices + choice, at each sorted place.
        sizes: choices of each expert.
        expert: its number, from 0, at each sorted place; the last one past the end.
        own: which sorted places are choices of these experts.
        choices: of each token.
    """

    order: Int[Array, " places"]
    sizes: Int[Array, " experts"]
    expert: Int[Array, " places"]
    own: Bool[Array, "places 1"]
    choices: int

    @classmethod
    def of(
        cls, chosen: Int[Array, "tokens choice"], num: int, first: Array | int = 0
    ) -> Dispatch:
        """The dispatch to `num` experts from number `first` on."""
        local = chosen.reshape(-1) - first
        group = jnp.where((local >= 0) & (local < num), local, num)
        order = jnp.argsort(group, stable=True).astype(jnp.int32)
        sizes = jnp.sum(group[:, None] == jnp.arange(num)[None], 0, dtype=jnp.int32)
        there = group[order]
        expert = jnp.minimum(there, num - 1).astype(jnp.int32)
        return cls(order, sizes, expert, (there < num)[:, None], chosen.shape[1])

    @property
    def token(self) -> Int[Array, " places"]:
        """Number of the token at each sorted place."""
        return self.order // self.choices

    def product(
        self,
        x: Float[Array, "places channel"],
        kernels: Float[Array, "experts channel out"],
        dtype: Any = None,
    ) -> Float[Array, "places out"]:
        """Each place's row times the kernel of its expert; zero at other places.

        `lax.ragged_dot`: one grouped instruction of XLA on TPU and GPU, for which XLA
        has a kernel on TPU alone; elsewhere every row is multiplied by every kernel.
        """
        wide = dtype or x.dtype
        y = lax.ragged_dot(x, kernels, self.sizes, preferred_element_type=wide)
        return jnp.where(self.own, y, jnp.zeros((), y.dtype))

    def combine(
        self,
        y: Float[Array, "places out"],
        weights: Float[Array, "tokens choice"],
    ) -> Float[Array, "tokens out"]:
        """Weighted sum of each token's choices, in their order."""
        by_choice = y[jnp.argsort(self.order)].reshape(*weights.shape, -1)
        return jnp.sum(by_choice * weights[..., None].astype(y.dtype), 1)


def expert_biases(
    weights: Float[Array, "tokens choice"],
    chosen: Int[Array, "tokens choice"],
    bias: Float[Array, "experts out"],
    first: Array | int = 0,
) -> Float[Array, "tokens out"]:
    """Weighted sum of the biases of each token's experts, as far as they are here.

    Args:
        weights, chosen: of `choose_experts`.
        bias: of the experts from number `first` on.
    """
    own = jnp.arange(bias.shape[0])
    here = chosen[..., None] - first == own[None, None]
    shares = jnp.sum(jnp.where(here, weights[..., None], 0.0), 1)
    return jnp.matmul(shares.astype(bias.dtype), bias, precision="highest")
