"""Dense layers, norms, activations, dropout, and sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import layer_norm, neighbor_gate, pixel_shuffle, squeeze_gate
from credit_jax.ops.activations import gelu, neighbor_taps
from credit_jax.ops.compensated import (
    compensated_sum,
    parts_to_sum,
    quotient,
    relative_error,
    two_sum,
)
from credit_jax.ops.dense import dense
from credit_jax.ops.random import drop, keep_mask, random_bits, random_normal
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

CASES = {
    "matrix": ((5, 4), (4, 3)),
    "field": ((2, 3, 5, 4), (4, 6)),
    "heads": ((2, 3, 4), (4, 3, 2, 5)),
    "vector": ((4,), (4, 3)),
    "few rows": ((2, 3, 20), (20, 3, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_product_is_that_of_tensordot(case):
    x, kernel = (jnp.asarray(draw(shape)) for shape in CASES[case])
    value, pull = jax.vjp(dense, x, kernel)
    expected, pull_expected = jax.vjp(lambda x, k: jnp.tensordot(x, k, 1), x, kernel)
    assert_close(value, expected, 1e-6, case)
    cotangent = jnp.asarray(draw(value.shape))
    both = zip(pull(cotangent), pull_expected(cotangent), strict=True)
    for name, (a, e) in zip(("by x", "by the kernel"), both, strict=True):
        assert_close(a, e, 1e-5, f"{case}, gradient {name}")


def test_the_gradient_by_the_kernel_sums_over_one_dim():
    def grad(x, kernel):
        return jax.grad(lambda k: jnp.sum(dense(x, k)))(kernel)

    program = str(jax.make_jaxpr(grad)(jnp.zeros((2, 3, 5, 4)), jnp.zeros((4, 6))))
    assert "([0], [0])" in program


def test_sums_may_be_wider_than_the_factors():
    x, kernel = jnp.ones((3, 600), jnp.bfloat16), jnp.ones((600, 2), jnp.bfloat16)
    assert dense(x, kernel).dtype == jnp.bfloat16
    wide = dense(x, kernel, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert (wide == 600).all()


# LayerNorm and pixel shuffle against torch.


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 5, 16), (7, 6)])
def test_layer_norm_is_that_of_torch(shape):
    x = 3 + 2 * draw(shape)
    scale, bias = draw(shape[-1:], seed=1), draw(shape[-1:], seed=2)

    def torch_norm(x, scale, bias):
        return torch.nn.functional.layer_norm(x, shape[-1:], scale, bias, 1e-5)

    actual = jax_values(layer_norm, x, scale, bias)
    assert_same(actual, torch_values(torch_norm, x, scale, bias), f"layer norm {shape}")


def test_layer_norm_takes_statistics_in_float32():
    x = jnp.asarray(100 + draw((4, 64)), jnp.bfloat16)
    one, zero = jnp.ones(64, jnp.bfloat16), jnp.zeros(64, jnp.bfloat16)
    exact = layer_norm(x.astype(jnp.float32), jnp.ones(64), jnp.zeros(64))
    out = layer_norm(x, one, zero)
    assert out.dtype == jnp.bfloat16
    assert jnp.array_equal(out, exact.astype(jnp.bfloat16)), "sums in bfloat16"


@pytest.mark.parametrize(("scale", "channels"), [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_pixel_shuffle_is_that_of_torch(scale, channels):
    x = draw((2, 3, 5, channels * scale**2))

    def torch_shuffle(x):
        x = torch.nn.functional.pixel_shuffle(x.permute(0, 3, 1, 2), scale)
        return x.permute(0, 2, 3, 1)

    actual = jax_values(lambda x: pixel_shuffle(x, scale), x)
    expected = torch_values(torch_shuffle, x)
    assert_same(actual, expected, f"scale {scale}", value=0, gradient=0)


# Gates of channel attention against the layers of torch.


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


# Random bits by position, and dropout from them.


KEY = jax.random.key(3)


def positions(rows, columns):
    return jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]


def test_bits_are_threefry_of_key_and_position():
    # The first known answer of Random123's kat_vectors: key and counter all zero.
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
    bits = random_bits(key, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    assert hex(int(bits[0])) == "0x6b200159"


def test_bits_depend_on_key_and_position_alone():
    whole = random_bits(KEY, *positions(6, 10))
    part = random_bits(KEY, jnp.arange(2, 5)[:, None], jnp.arange(4, 7)[None, :])
    assert (whole[2:5, 4:7] == part).all()
    other = random_bits(jax.random.key(4), *positions(6, 10))
    assert (whole != other).all()
    assert len(np.unique(whole)) == whole.size, "two positions have the same bits"


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements(rate):
    keep = np.asarray(keep_mask(KEY, *positions(300, 400), rate))
    spread = np.sqrt(max(rate * (1 - rate), 1e-12) / keep.size)
    print(f"rate {rate}: dropped {1 - keep.mean():.4f}, standard error {spread:.4f}")
    assert abs(1 - keep.mean() - rate) < 4 * spread
    for dim in (0, 1):
        lines = 1 - keep.mean(dim)
        assert abs(lines.std() - np.sqrt(rate * (1 - rate) / keep.shape[dim])) < 0.01


def test_mask_is_the_same_in_every_run_and_under_jit():
    eager = keep_mask(KEY, *positions(5, 7), 0.3)
    compiled = jax.jit(lambda key: keep_mask(key, *positions(5, 7), 0.3))(KEY)
    assert (eager == compiled).all()


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_kept_values_are_scaled_and_gradients_finite(rate):
    x = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    keep = jnp.asarray([True, False, True, False]) & (rate < 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    value, gradient = jax.value_and_grad(lambda x: drop(x, keep, rate).sum())(x)
    assert float(value) == pytest.approx(4 * scale if rate < 1 else 0)
    np.testing.assert_allclose(gradient, np.asarray(keep) * scale, rtol=1e-6)


# Normal draws by position: their distribution, and equality on any part.


def _draw(key, rows, columns):
    return np.asarray(random_normal(key, jnp.arange(*rows)[:, None], columns[None]))


def test_moments_and_quantiles_are_those_of_a_normal():
    x = _draw(KEY, (0, 400), jnp.arange(500))
    num = x.size
    assert abs(x.mean()) < 4 / np.sqrt(num)
    assert abs((x**2).mean() - 1) < 4 * np.sqrt(2 / num)
    assert abs((x**4).mean() - 3) < 4 * np.sqrt(96 / num)
    for quantile, probability in ((-1.2816, 0.1), (0.0, 0.5), (1.9600, 0.975)):
        error = 4 * np.sqrt(probability * (1 - probability) / num)
        assert abs((x < quantile).mean() - probability) < error
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01
    assert np.isfinite(x).all()
    assert np.abs(x).max() < 5.91


def test_a_part_is_that_of_the_whole_and_keys_differ():
    whole = _draw(KEY, (0, 6), jnp.arange(10))
    assert np.array_equal(_draw(KEY, (2, 5), jnp.arange(4, 7)), whole[2:5, 4:7])
    assert not np.any(whole == _draw(jax.random.key(4), (0, 6), jnp.arange(10)))


def test_draws_in_float64_are_those_of_float32_but_for_rounding():
    with jax.enable_x64(True):
        rows, columns = jnp.arange(40)[:, None], jnp.arange(50)[None]
        wide = random_normal(KEY, rows, columns, jnp.float64)
        narrow = random_normal(KEY, rows, columns)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=2e-6)


# Compensated sums and quotients against double precision.


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_sums_are_those_of_double_precision(size):
    x = np.random.default_rng(size).normal(1, 10, (3, size)).astype(np.float32)
    high, low = (np.float64(own) for own in jax.jit(compensated_sum)(jnp.asarray(x)))
    exact = x.astype(np.float64).sum(-1)
    scale = np.abs(x).astype(np.float64).sum(-1)
    error = np.abs(high + low - exact) / scale
    print(f"{size} values: {error.max():.1e} of the sum of magnitudes")
    assert (error < 1e-13).all()
    assert np.array_equal(np.float32(exact), np.float32(high + low))


def test_parts_of_several_devices_add_up():
    x = np.random.default_rng(0).normal(3, 1, (8, 5000)).astype(np.float32)
    tops, rests = jax.jit(lambda x: parts_to_sum(*compensated_sum(x)))(jnp.asarray(x))
    high, low = two_sum(tops.sum(), rests.sum())
    exact = x.astype(np.float64).sum()
    assert abs(np.float64(high) + np.float64(low) - exact) / exact < 1e-11


def test_quotients_are_rounded_once():
    rng = np.random.default_rng(1)
    a = rng.normal(size=20_000).astype(np.float32)
    for value in rng.uniform(0.01, 50, 20):
        high = np.float32(value)
        low = np.float32(value - np.float64(high))
        found = np.asarray(jax.jit(quotient)(jnp.asarray(a), high, low))
        expected = np.float32(a.astype(np.float64) / (np.float64(high) + low))
        differ = (found != expected).mean()
        assert differ < 1e-3, f"{differ:.1e} of the quotients by {value}"


# The relative L2 error.


def test_relative_error_sees_what_it_must():
    x = np.ones((2, 3))
    assert relative_error(x, x) == 0
    assert relative_error(x * np.nan, x) == np.inf
    assert relative_error(x[:1], x) == np.inf
    assert relative_error(1.1 * x, x) == pytest.approx(0.1)
    assert relative_error(np.nan, np.nan) == np.inf
    assert relative_error(x, 0 * x) == pytest.approx(np.sqrt(6))
