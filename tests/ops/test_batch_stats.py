"""Batch normalization and running statistics against torch.nn.BatchNorm2d."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import RunningStatistics, batch_norm
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

CHANNELS = 5


def torch_layer(scale, bias, momentum, track=True):
    """Returns torch.nn.BatchNorm2d with these weights, for NHWC arrays."""
    layer = torch.nn.BatchNorm2d(
        CHANNELS, momentum=momentum, track_running_stats=track, dtype=scale.dtype
    )
    layer.weight.data, layer.bias.data = scale.detach(), bias.detach()
    return layer


def functional(layer, x, scale, bias):
    out = torch.func.functional_call(
        layer, {"weight": scale, "bias": bias}, (x.permute(0, 3, 1, 2),)
    )
    return out.permute(0, 2, 3, 1)


def weights():
    return draw((CHANNELS,), seed=1), draw((CHANNELS,), seed=2)


def batches(count, shape=(2, 4, 3, CHANNELS)):
    return [3 + (1 + i) * draw(shape, seed=10 + i) for i in range(count)]


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_training_and_evaluation_are_those_of_torch(momentum):
    scale, bias = weights()
    layer = torch_layer(torch.from_numpy(scale), torch.from_numpy(bias), momentum)
    running = RunningStatistics.fresh(CHANNELS)
    for step, x in enumerate(batches(3)):

        def train(x, scale, bias, running=running):
            keywords = {"training": True, "momentum": momentum}
            return batch_norm(x, scale, bias, running, **keywords)

        expected = torch_values(lambda *a: functional(layer, *a), x, scale, bias)
        actual = jax_values(lambda *a: train(*a)[0], x, scale, bias)
        assert_same(actual, expected, f"training step {step}")
        _, running = train(jnp.asarray(x), jnp.asarray(scale), jnp.asarray(bias))
    assert int(running.count) == int(layer.num_batches_tracked) == 3
    assert_close(running.mean, layer.running_mean.numpy(), 1e-6, "running mean")
    assert_close(running.variance, layer.running_var.numpy(), 1e-6, "running variance")
    layer.eval()
    (x,) = batches(1)
    expected = torch_values(lambda *a: functional(layer, *a), x, scale, bias)
    actual = jax_values(
        lambda *a: batch_norm(*a, running, training=False)[0], x, scale, bias
    )
    assert_same(actual, expected, "evaluation")


def test_nothing_remembered():
    scale, bias = weights()
    layer = torch_layer(torch.from_numpy(scale), torch.from_numpy(bias), 0.1, False)
    layer.eval()
    (x,) = batches(1)
    expected = torch_values(lambda *a: functional(layer, *a), x, scale, bias)
    actual = jax_values(lambda *a: batch_norm(*a, training=False)[0], x, scale, bias)
    assert_same(actual, expected, "no running statistics")
    x, scale, bias = jnp.asarray(x), jnp.asarray(scale), jnp.asarray(bias)
    assert batch_norm(x, scale, bias, training=True)[1] is None


@pytest.mark.parametrize("shape", [(6, CHANNELS), (2, 3, 2, 4, CHANNELS)])
def test_any_number_of_dims(shape):
    scale, bias = weights()
    (x,) = batches(1, shape)

    def torch_norm(x, scale, bias):
        x = x.movedim(-1, 1)
        out = torch.nn.functional.batch_norm(x, None, None, scale, bias, training=True)
        return out.movedim(1, -1)

    expected = torch_values(torch_norm, x, scale, bias)
    actual = jax_values(lambda *a: batch_norm(*a, training=True)[0], x, scale, bias)
    assert_same(actual, expected, f"{shape}")


def test_what_is_remembered_gets_no_gradient():
    scale, bias = map(jnp.asarray, weights())
    (x,) = batches(1)

    def remembered(x):
        running = RunningStatistics.fresh(CHANNELS)
        _, running = batch_norm(x, scale, bias, running, training=True)
        assert running is not None
        return running.mean + running.variance

    value, (gradient,) = jax_values(remembered, x)
    assert np.ptp(value) > 0
    assert not gradient.any(), "torch's buffers pass no gradient"


def test_statistics_are_float32_or_wider():
    x = jnp.asarray(100 + draw((4, 8, 8, CHANNELS)), jnp.bfloat16)
    one = jnp.ones(CHANNELS, jnp.bfloat16)
    running = RunningStatistics.fresh(CHANNELS)
    out, after = batch_norm(x, one, 0 * one, running, training=True, momentum=1.0)
    exact, _ = batch_norm(
        x.astype(jnp.float32), jnp.ones(CHANNELS), jnp.zeros(CHANNELS), training=True
    )
    assert out.dtype == jnp.bfloat16
    assert after is not None
    assert after.mean.dtype == after.variance.dtype == jnp.float32
    assert jnp.array_equal(out, exact.astype(jnp.bfloat16)), "sums in bfloat16"


def test_one_value_a_channel_is_an_error_as_in_torch():
    one = jnp.ones(CHANNELS)
    with pytest.raises(ValueError, match="got 1 value a channel"):
        batch_norm(one.reshape(1, 1, 1, -1), one, one, training=True)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.BatchNorm2d(CHANNELS)(torch.ones(1, CHANNELS, 1, 1))
    running = RunningStatistics.fresh(CHANNELS)
    out, _ = batch_norm(one.reshape(1, 1, 1, -1), one, one, running, training=False)
    assert out.shape == (1, 1, 1, CHANNELS)
