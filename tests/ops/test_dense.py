"""Dense layers, norms, gates, activations, dropout and sums; most beside torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax import ops
from credit_jax.ops import compensated
from credit_jax.ops.activations import gelu, neighbor_taps
from credit_jax.ops.dense import dense
from credit_jax.ops.random import drop, keep_mask, random_bits, random_normal
from tests.ops.cases import batch_norm
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

functional = torch.nn.functional


def arrays(*shapes, scale=1.0, shift=0.0):
    """Draws of shapes; the first is scaled and shifted."""
    first, *others = (draw(shape, seed) for seed, shape in enumerate(shapes))
    return [shift + np.float32(scale) * first, *others]


def torch_layer_norm(x, scale, bias):
    return functional.layer_norm(x, scale.shape, scale, bias, 1e-5)


def torch_batch_norm(x, scale, bias):
    out = functional.batch_norm(
        x.movedim(-1, 1), None, None, scale, bias, training=True
    )
    return out.movedim(1, -1)


def gate(pooled, squeeze, expand, low=None, high=None):
    return ops.squeeze_gate(pooled, (squeeze, low), (expand, high))


def torch_gate(pooled, squeeze, expand, low=None, high=None):
    hidden = functional.linear(pooled, squeeze.T, low).relu()
    return functional.linear(hidden, expand.T, high).sigmoid()


def torch_neighbor_gate(pooled, kernel):
    half = len(kernel) // 2
    mixed = functional.conv1d(pooled[:, None], kernel[None, None], padding=half)
    return mixed[:, 0].sigmoid()


def torch_shuffle(scale):
    return lambda x: functional.pixel_shuffle(x.movedim(-1, 1), scale).movedim(1, -1)


GATE = (2, 6), (6, 3), (3, 6), (3,), (6,)
PAIRS, SUMS = "...id,...jd->...ij", "...ij,...jd->...id"
# Windows and heads, tokens i, tokens j, channels.
WINDOWS = [
    *(((2, 3), 1, 1, 5), ((2, 5, 3), 4, 4, 16), ((3, 2), 16, 16, 8)),
    *(((3, 2), 25, 25, 8), ((3,), 4, 17, 6), ((3,), 17, 4, 6)),
]
# name: ours, torch's, arrays.
OPS = {
    **{
        f"dense, {name}": (
            dense,
            lambda x, k: torch.tensordot(x, k, 1),
            arrays(*shapes),
        )
        for name, shapes in {
            "matrix": ((5, 4), (4, 3)),
            "field": ((2, 3, 5, 4), (4, 6)),
            "heads": ((2, 3, 4), (4, 3, 2, 5)),
            "vector": ((4,), (4, 3)),
            "few rows": ((2, 3, 20), (20, 3, 4)),
        }.items()
    },
    **{
        f"layer norm {shape}": (
            *(ops.layer_norm, torch_layer_norm),
            arrays(shape, shape[-1:], shape[-1:], scale=2, shift=3),
        )
        for shape in [(4, 8), (2, 3, 5, 16), (7, 6)]
    },
    **{
        f"batch norm {shape}": (
            lambda x, *given: batch_norm(
                x, *given, ops.RunningStatistics.fresh(x.shape[-1]), training=True
            )[0],
            torch_batch_norm,
            arrays(shape, (5,), (5,), shift=3),
        )
        for shape in [(6, 5, 5), (2, 3, 2, 4, 5)]
    },
    **{
        f"pixel shuffle {scale}": (
            lambda x, scale=scale: ops.pixel_shuffle(x, scale),
            torch_shuffle(scale),
            arrays((2, 3, 5, channels * scale**2)),
        )
        for scale, channels in [(1, 3), (2, 3), (3, 2), (4, 1)]
    },
    "squeeze gate": (gate, torch_gate, arrays(*GATE[:3])),
    "squeeze gate, bias": (gate, torch_gate, arrays(*GATE)),
    **{
        f"neighbor gate {taps}": (
            *(ops.neighbor_gate, torch_neighbor_gate),
            arrays((2, channels), (taps,)),
        )
        for channels, taps in [(7, 3), (4, 5), (9, 1)]
    },
    **{
        f"gelu {scale}": (gelu, functional.gelu, arrays((50, 40), scale=scale))
        for scale in (0.1, 1.0, 4.0, 30.0)
    },
    **{
        f"logits {i} {j}": (
            ops.attention_logits,
            lambda a, b: torch.einsum(PAIRS, a, b),
            arrays((*batch, i, channels), (*batch, j, channels)),
        )
        for batch, i, j, channels in WINDOWS
    },
    **{
        f"attend {i} {j}": (
            ops.attend,
            lambda a, b: torch.einsum(SUMS, a, b),
            arrays((*batch, i, j), (*batch, j, channels)),
        )
        for batch, i, j, channels in WINDOWS
    },
}


@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients_are_torchs(name):
    ours, theirs, given = OPS[name]
    actual, expected = jax_values(ours, *given), torch_values(theirs, *given)
    exact = {"value": 0, "gradient": 0} if name.startswith("pixel") else {}
    assert_same(actual, expected, name, **exact)


def test_the_gradient_by_the_kernel_sums_over_one_dim():
    def grad(x, kernel):
        return jax.grad(lambda k: jnp.sum(dense(x, k)))(kernel)

    program = str(jax.make_jaxpr(grad)(jnp.zeros((2, 3, 5, 4)), jnp.zeros((4, 6))))
    assert "([0], [0])" in program


@pytest.mark.parametrize("product", [dense, ops.attention_logits])
def test_sums_may_be_wider_than_the_factors(product):
    x = jnp.ones((2, 600), jnp.bfloat16)
    other = x.T if product is dense else x
    assert product(x, other).dtype == jnp.bfloat16
    wide = product(x, other, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert (wide == 600).all()


@pytest.mark.parametrize("norm", [ops.layer_norm, batch_norm])
def test_statistics_are_float32_or_wider(norm):
    running = ops.RunningStatistics.fresh(64)
    keywords = {} if norm is ops.layer_norm else {"running": running, "training": True}
    x = jnp.asarray(100 + draw((4, 8, 8, 64)), jnp.bfloat16)
    ones = jnp.ones(64, jnp.bfloat16)
    wide = (array.astype(jnp.float32) for array in (x, ones, 0 * ones))
    out, exact = norm(x, ones, 0 * ones, **keywords), norm(*wide, **keywords)
    if norm is batch_norm:
        out, exact = out[0], exact[0]
        _, after = batch_norm(x, ones, ones, running, training=True)
        assert after.mean.dtype == after.variance.dtype == jnp.float32
    assert out.dtype == jnp.bfloat16
    assert jnp.array_equal(out, exact.astype(jnp.bfloat16)), "sums in bfloat16"


# Batch normalization with running statistics.


CHANNELS = 5


def batch_norm_of_torch(momentum):
    """Returns torch.nn.BatchNorm2d, and it as a function of NHWC arrays."""
    layer = torch.nn.BatchNorm2d(CHANNELS, momentum=momentum)

    def run(x, scale, bias):
        weights = {"weight": scale, "bias": bias}
        out = torch.func.functional_call(layer, weights, (x.movedim(-1, 1),))
        return out.movedim(1, -1)

    return layer, run


def batch(step=0):
    return arrays(
        (2, 4, 3, CHANNELS), (CHANNELS,), (CHANNELS,), scale=1 + step, shift=3
    )


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_are_those_of_torch(momentum):
    layer, theirs = batch_norm_of_torch(momentum)
    running = ops.RunningStatistics.fresh(CHANNELS)
    for step in range(3):

        def train(*given, running=running):
            keywords = {"training": True, "momentum": momentum}
            return batch_norm(*given, running, **keywords)

        expected = torch_values(theirs, *batch(step))
        actual = jax_values(lambda *given: train(*given)[0], *batch(step))
        assert_same(actual, expected, f"training step {step}")
        _, running = train(*map(jnp.asarray, batch(step)))
    assert int(running.count) == int(layer.num_batches_tracked) == 3
    assert_close(running.mean, layer.running_mean.numpy(), 1e-6, "running mean")
    assert_close(running.variance, layer.running_var.numpy(), 1e-6, "running variance")
    layer.eval()
    actual = jax_values(
        lambda *given: batch_norm(*given, running, training=False)[0], *batch()
    )
    assert_same(actual, torch_values(theirs, *batch()), "evaluation")


def test_what_is_remembered_gets_no_gradient():
    def remembered(x, *weights):
        running = ops.RunningStatistics.fresh(CHANNELS)
        _, running = batch_norm(x, *weights, running, training=True)
        return running.mean + running.variance

    value, gradients = jax_values(remembered, *batch())
    assert np.ptp(value) > 0
    assert not gradients[0].any(), "torch's buffers pass no gradient"


def test_one_value_a_channel_is_an_error_as_in_torch():
    one, running = jnp.ones(CHANNELS), ops.RunningStatistics.fresh(CHANNELS)
    with pytest.raises(ValueError, match="got 1 value a channel"):
        batch_norm(one[None, None, None], one, one, running, training=True)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.BatchNorm2d(CHANNELS)(torch.ones(1, CHANNELS, 1, 1))
    out, _ = batch_norm(one[None, None, None], one, one, running, training=False)
    assert out.shape == (1, 1, 1, CHANNELS)


# Gates and activations.


def test_neighbor_taps_are_those_of_credit(credit):
    from tests.support.credit_modules import credit_attribute

    block = credit_attribute("models.unet_attention_modules", "ECABlock")
    wrong = []
    for channels in np.unique(np.geomspace(1, 5000, 300).astype(int)).tolist():
        (size,) = block(channels).conv.kernel_size
        if neighbor_taps(channels) != size:
            wrong.append((channels, size, neighbor_taps(channels)))
    assert not wrong, f"(channels, CREDIT's, ours): {wrong[:5]}"


def test_gelu_rounds_once_keeps_one_array_and_has_tangents():
    x = jnp.asarray(draw((4000,)), jnp.bfloat16)
    assert gelu(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        gelu(x), gelu(x.astype(jnp.float32)).astype(jnp.bfloat16)
    )
    x, tangent = jnp.asarray(draw((30,))), jnp.asarray(draw((30,), seed=1))
    _, pull = jax.vjp(gelu, x)
    assert [array.shape for array in jax.tree.leaves(pull)] == [(30,)]
    backward = pull(jnp.ones(30))[0] * tangent
    assert_close(jax.jvp(gelu, (x,), (tangent,))[1], backward, 1e-6, "derivative")


# Random bits by position, and dropout from them.


KEY = jax.random.key(3)


def positions(rows, columns):
    return jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]


def test_bits_are_threefry_of_key_and_position():
    # The first known answer of Random123's kat_vectors: key and counter all zero.
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
    bits = random_bits(key, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    assert hex(int(bits[0])) == "0x6b200159"


@pytest.mark.parametrize("function", [random_bits, random_normal])
def test_draws_depend_on_key_and_position_alone(function):
    whole = np.asarray(function(KEY, *positions(6, 10)))
    part = function(KEY, jnp.arange(2, 5)[:, None], jnp.arange(4, 7)[None, :])
    assert (whole[2:5, 4:7] == part).all()
    assert (whole != function(jax.random.key(4), *positions(6, 10))).all()
    assert len(np.unique(whole)) == whole.size, "two positions have the same bits"


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements(rate):
    run = jax.jit(lambda key: keep_mask(key, *positions(300, 400), rate))
    keep = np.asarray(run(KEY))
    assert (keep[:5, :7] == keep_mask(KEY, *positions(5, 7), rate)).all()
    spread = np.sqrt(max(rate * (1 - rate), 1e-12) / keep.size)
    print(f"rate {rate}: dropped {1 - keep.mean():.4f}, standard error {spread:.4f}")
    assert abs(1 - keep.mean() - rate) < 4 * spread
    for dim in (0, 1):
        lines = 1 - keep.mean(dim)
        assert abs(lines.std() - np.sqrt(rate * (1 - rate) / keep.shape[dim])) < 0.01


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_kept_values_are_scaled_and_gradients_finite(rate):
    x = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    keep = jnp.asarray([True, False, True, False]) & (rate < 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    value, gradient = jax.value_and_grad(lambda x: drop(x, keep, rate).sum())(x)
    assert float(value) == pytest.approx(4 * scale if rate < 1 else 0)
    np.testing.assert_allclose(gradient, np.asarray(keep) * scale, rtol=1e-6)


def test_moments_and_quantiles_are_those_of_a_normal():
    x = np.asarray(random_normal(KEY, *positions(400, 500)))
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


def test_draws_in_float64_are_those_of_float32_but_for_rounding():
    with jax.enable_x64(True):
        wide = random_normal(KEY, *positions(40, 50), jnp.float64)
        narrow = random_normal(KEY, *positions(40, 50))
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=2e-6)


# Compensated sums and quotients against double precision.


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_sums_are_those_of_double_precision(size):
    x = np.random.default_rng(size).normal(1, 10, (3, size)).astype(np.float32)
    high, low = (
        np.float64(own) for own in jax.jit(compensated.compensated_sum)(jnp.asarray(x))
    )
    exact = x.astype(np.float64).sum(-1)
    scale = np.abs(x).astype(np.float64).sum(-1)
    error = np.abs(high + low - exact) / scale
    print(f"{size} values: {error.max():.1e} of the sum of magnitudes")
    assert (error < 1e-13).all()
    assert np.array_equal(np.float32(exact), np.float32(high + low))


def test_parts_of_several_devices_add_up():
    x = np.random.default_rng(0).normal(3, 1, (8, 5000)).astype(np.float32)
    tops, rests = jax.jit(
        lambda x: compensated.parts_to_sum(*compensated.compensated_sum(x))
    )(jnp.asarray(x))
    high, low = compensated.two_sum(tops.sum(), rests.sum())
    exact = x.astype(np.float64).sum()
    assert abs(np.float64(high) + np.float64(low) - exact) / exact < 1e-11


def test_quotients_are_rounded_once():
    rng = np.random.default_rng(1)
    a = rng.normal(size=20_000).astype(np.float32)
    for value in rng.uniform(0.01, 50, 20):
        high = np.float32(value)
        low = np.float32(value - np.float64(high))
        found = np.asarray(jax.jit(compensated.quotient)(jnp.asarray(a), high, low))
        expected = np.float32(a.astype(np.float64) / (np.float64(high) + low))
        differ = (found != expected).mean()
        assert differ < 1e-3, f"{differ:.1e} of the quotients by {value}"


# The relative L2 error.


def test_relative_error_sees_what_it_must():
    x = np.ones((2, 3))
    assert compensated.relative_error(x, x) == 0
    assert compensated.relative_error(x * np.nan, x) == np.inf
    assert compensated.relative_error(x[:1], x) == np.inf
    assert compensated.relative_error(1.1 * x, x) == pytest.approx(0.1)
    assert compensated.relative_error(np.nan, np.nan) == np.inf
    assert compensated.relative_error(x, 0 * x) == pytest.approx(np.sqrt(6))
