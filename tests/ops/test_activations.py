"""Gates of channel attention against the layers of torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import neighbor_gate, squeeze_gate
from credit_jax.ops.activations import gelu, neighbor_taps
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

functional = torch.nn.functional


@pytest.mark.parametrize("bias", [False, True])
def test_squeeze_gate_is_that_of_torch(bias):
    arrays = [draw((2, 6)), draw((6, 3), seed=1), draw((3, 6), seed=2)]
    arrays += [draw((3,), seed=3), draw((6,), seed=4)] if bias else []

    def gate(pooled, squeeze, expand, low=None, high=None):
        return squeeze_gate(pooled, squeeze, expand, squeeze_bias=low, expand_bias=high)

    def torch_gate(pooled, squeeze, expand, low=None, high=None):
        hidden = functional.linear(pooled, squeeze.T, low).relu()
        return functional.linear(hidden, expand.T, high).sigmoid()

    actual = jax_values(gate, *arrays)
    assert_same(actual, torch_values(torch_gate, *arrays), f"bias {bias}")


@pytest.mark.parametrize(("channels", "taps"), [(7, 3), (4, 5), (9, 1)])
def test_neighbor_gate_is_that_of_torch(channels, taps):
    def torch_gate(pooled, kernel):
        mixed = functional.conv1d(
            pooled[:, None], kernel[None, None], padding=taps // 2
        )
        return mixed[:, 0].sigmoid()

    arrays = draw((2, channels)), draw((taps,), seed=1)
    expected = torch_values(torch_gate, *arrays)
    assert_same(jax_values(neighbor_gate, *arrays), expected, f"{taps} taps")


def test_neighbor_taps_are_those_of_credit(credit):
    from tests.support.credit_modules import credit_attribute

    block = credit_attribute("models.unet_attention_modules", "ECABlock")
    wrong = []
    for channels in np.unique(np.geomspace(1, 5000, 300).astype(int)).tolist():
        (size,) = block(channels).conv.kernel_size
        if neighbor_taps(channels) != size:
            wrong.append((channels, size, neighbor_taps(channels)))
    assert not wrong, f"(channels, CREDIT's, ours): {wrong[:5]}"


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_gelu_is_that_of_torch(scale):
    x = scale * draw((50, 40))
    expected = torch_values(functional.gelu, x)
    assert_same(jax_values(gelu, x), expected, f"scale {scale}")


@pytest.mark.parametrize("x", [-30.0, -8.0, 0.0, 8.0, 30.0])
def test_far_values_are_those_of_torch(x):
    leaf = torch.tensor(x, requires_grad=True)
    value = functional.gelu(leaf)
    (slope,) = torch.autograd.grad(value, leaf)
    actual, actual_slope = jax.value_and_grad(gelu)(jnp.float32(x))
    print(f"gelu({x}) = {actual}, {value}; slope {actual_slope}, {slope}")
    assert abs(float(actual - value.item())) <= 1e-6 * max(1.0, abs(x))
    assert abs(float(actual_slope - slope.item())) <= 1e-6


def test_bfloat16_is_rounded_once():
    x = jnp.asarray(draw((4000,)), jnp.bfloat16)
    wide = x.astype(jnp.float32)
    assert gelu(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gelu(x), gelu(wide).astype(jnp.bfloat16))


def test_one_array_is_kept_for_the_gradient():
    _, pull = jax.vjp(gelu, jnp.zeros((5, 7)))
    assert [array.shape for array in jax.tree.leaves(pull)] == [(5, 7)]


def test_derivative_forwards_is_that_backwards():
    x, tangent = jnp.asarray(draw((30,))), jnp.asarray(draw((30,), seed=1))
    _, forward = jax.jvp(gelu, (x,), (tangent,))
    backward = jax.grad(lambda x: jnp.sum(gelu(x)))(x) * tangent
    assert_close(forward, backward, 1e-6, "derivative")
