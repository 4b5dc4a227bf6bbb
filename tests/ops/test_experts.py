"""Experts applied to sorted choices against the dense definition; routing."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.models.flops import count_flops
from credit_jax.ops.activations import gelu
from credit_jax.ops.experts import Dispatch, balance_loss, choose_experts, expert_biases
from tests.support import assert_close
from tests.support.gradients import draw

TOKENS, CHANNELS, HIDDEN, EXPERTS, CHOICES = 37, 8, 12, 6, 2


def arrays() -> tuple[Any, ...]:
    shapes = [(TOKENS, CHANNELS), (TOKENS, EXPERTS), (EXPERTS, CHANNELS, HIDDEN)]
    shapes += [(EXPERTS, HIDDEN), (EXPERTS, HIDDEN, CHANNELS), (EXPERTS, CHANNELS)]
    return tuple(
        jnp.asarray(draw(shape, seed, np.float64)) for seed, shape in enumerate(shapes)
    )


def by_choice(x: Any, logits: Any, up: Any, a: Any, down: Any, b: Any) -> Any:
    """Applies all experts in two halves, as two devices of ep would."""
    weights, chosen = choose_experts(logits, CHOICES)
    y, half = jnp.zeros_like(x), EXPERTS // 2
    for first in (0, half):
        own = slice(first, first + half)
        dispatch = Dispatch.of(chosen, half, first)
        units = dispatch.product(dispatch.spread(x), up[own])
        units = gelu(units + dispatch.of_expert(a[own]))
        y = y + dispatch.combine(dispatch.product(units, down[own]), weights)
        y = y + expert_biases(weights, chosen, b[own], first)
    return y


def dense(x: Any, logits: Any, up: Any, a: Any, down: Any, b: Any) -> Any:
    """The definition: a weighted sum of every expert's layers, for every token."""
    weights, chosen = choose_experts(logits, CHOICES)
    y = jnp.zeros_like(x)
    for number in range(EXPERTS):
        share = jnp.sum(jnp.where(chosen == number, weights, 0.0), 1, keepdims=True)
        units = gelu(x @ up[number] + a[number][None])
        y = y + share * (units @ down[number] + b[number][None])
    return y


def test_equals_a_loop_over_experts() -> None:
    """Value and every gradient; some experts are not chosen by any token."""
    with jax.enable_x64(True):
        given = arrays()
        given = (given[0], given[1].at[:, 2].add(-50.0), *given[2:])

        @jax.jit
        def run(*given: Any) -> Any:
            found = []
            for function in (by_choice, dense):
                y, pull = jax.vjp(function, *given)
                found.append((y, *pull(jnp.cos(3 * y))))
            return found

        ours, expected = run(*given)
    assert not np.any(np.asarray(ours[3])[2]), "expert 2 was chosen"
    for number, pair in enumerate(zip(ours, expected, strict=True)):
        assert_close(*pair, 1e-13, f"experts by choice: {number}")


def test_no_gradient_is_sorted_on_gpus() -> None:
    """Scatters, as of the gradients of gathers, say that no two values meet."""

    def loss(*given: Any) -> Any:
        return jnp.sum(jnp.square(by_choice(*given)))

    text = jax.jit(jax.grad(loss, range(6))).lower(*arrays()).as_text()
    scatters = re.findall(r"stablehlo.scatter.*", text)
    assert scatters, "the tokens are permuted"
    assert all("unique_indices = true" in scatter for scatter in scatters), scatters


def test_ties_go_to_the_lower_number() -> None:
    logits = jnp.asarray([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    weights, chosen = choose_experts(logits, 2)
    assert chosen.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_no_token_is_dropped() -> None:
    """All tokens may choose one expert."""
    chosen = jnp.zeros((TOKENS, 1), jnp.int32).at[3, 0].set(4)
    dispatch = Dispatch.of(chosen, 3)
    assert dispatch.sizes.tolist() == [TOKENS - 1, 0, 0]
    ones = dispatch.product(jnp.ones((TOKENS, 1)), jnp.ones((3, 1, 1)))
    kept = dispatch.combine(ones, jnp.ones((TOKENS, 1)))
    assert kept[:, 0].tolist() == [float(t != 3) for t in range(TOKENS)]


def test_the_balance_loss_is_least_where_load_is_even() -> None:
    even, skewed = jnp.full(4, 0.25), jnp.asarray([0.7, 0.1, 0.1, 0.1])
    assert balance_loss(even, even) == 1.0
    assert balance_loss(skewed, skewed) > 2.0
    by_load = jax.grad(lambda load: balance_loss(load, skewed))(skewed)
    assert not by_load.any(), "the load is constant in the gradient"


def test_operations_are_those_of_the_choices() -> None:
    """A row is multiplied once per choice, whatever the number of experts."""
    sizes = jnp.full(EXPERTS, 4, jnp.int32)

    def product(x: Any, kernels: Any) -> Any:
        return jax.lax.ragged_dot(x, kernels, sizes).sum()

    x, kernels = jnp.ones((24, 8)), jnp.ones((EXPERTS, 8, 16))
    one = 2 * 24 * 8 * 16
    assert count_flops(product, x, kernels) == one
    assert count_flops(jax.grad(product, (0, 1)), x, kernels) == 2 * one


def test_the_product_is_one_grouped_instruction_on_accelerators() -> None:
    """XLA gets the group sizes, forward and backward, where it supports them."""
    x, kernels = jnp.ones((24, 8)), jnp.ones((3, 8, 16))
    chosen = jnp.zeros((24, 1), jnp.int32)

    def loss(x: Any, kernels: Any) -> Any:
        return Dispatch.of(chosen, 3).product(x, kernels).sum()

    traced = jax.jit(jax.value_and_grad(loss, (0, 1))).trace(x, kernels)
    grouped = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("tpu", "cuda", "cpu")
    }
    found = {name: text.count('chlo.ragged_dot"') for name, text in grouped.items()}
    assert found == {"tpu": 3, "cuda": 3, "cpu": 0}
