"""Operation counts of programs with known numbers of operations."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from credit_jax.models.flops import count_flops


def test_a_product_and_its_gradients():
    x, w = jnp.ones((8, 16)), jnp.ones((16, 32))
    forward = 2 * 8 * 16 * 32
    assert count_flops(jnp.dot, x, w) == forward
    loss = jax.grad(lambda x, w: jnp.sum(jnp.dot(x, w) ** 2), argnums=(0, 1))
    assert count_flops(loss, x, w) == 3 * forward


def test_what_no_output_needs_does_not_count():
    x, w = jnp.ones((8, 16)), jnp.ones((16, 32))

    def body(x, w):
        return jnp.dot(x, w), jax.jit(jnp.dot)(2 * x, w)

    assert count_flops(lambda x, w: body(x, w)[0], x, w) == 2 * 8 * 16 * 32


def test_a_convolution_counts_its_taps():
    x, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 2, 6))

    def conv(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=2
        )

    assert count_flops(jax.jit(conv), x, kernel) == 2 * (3 * 3 * 2) * (2 * 8 * 8 * 6)


def test_the_gradient_of_a_stride_counts_no_zeros():
    x, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((2, 2, 4, 6))

    def loss(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(
            lax.conv_general_dilated(
                x, kernel, (2, 2), "VALID", dimension_numbers=layout
            )
        )

    forward = 2 * (2 * 2 * 4) * (2 * 4 * 4 * 6)
    both = jax.value_and_grad(loss, (0, 1))
    assert count_flops(both, x, kernel) == 3 * forward


def test_loops_count_as_often_as_they_run_and_what_is_recomputed_counts_again():
    w = jnp.ones((4, 4))
    once = 2 * 4 * 4 * 4

    def body(x, _):
        return jnp.sin(x @ w), None

    def loop(x):
        return jnp.sum(lax.scan(jax.checkpoint(body), x, length=5)[0])

    assert count_flops(loop, w) == 5 * once
    assert count_flops(jax.grad(loop), w) == 5 * 3 * once


def test_a_loop_of_unknown_length_is_refused():
    def loop(x):
        return lax.while_loop(lambda x: jnp.sum(x) < 9.0, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="while loop"):
        count_flops(loop, jnp.ones((2, 2)))
