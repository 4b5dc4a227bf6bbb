"""Losses of whole fields: spectral, of single variables, of an ensemble, spherical.

Each is a simplified loss of CREDIT (spectral and power losses, BaseLoss, KCRPS). It is
registered, built from a config, and compared with a NumPy formula on one
device and with itself on 2, 4 and 8 shards of latitude.
"""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import LOSSES, ConfiguredLoss, build_loss
from credit_jax.named_fields import ChannelLayout, keys_of_tree, latitude_weights
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, loss_and_gradient, of_pair

LAT, LON = 13, 12
CHANNELS = {"S/prognostic/3d/T": 3, "S/prognostic/2d/SP": 1, "S/diagnostic/2d/TP": 1}
LAYOUT = ChannelLayout.of(CHANNELS)
NUM = LAYOUT.num_channels
LATITUDE = np.linspace(80.0, -85.0, LAT)
LEGENDRE = draw((5, LAT), seed=3)  # any linear transform along latitude
WEIGHTS = {"S/prognostic/3d/T": 2.0, "S/prognostic/2d/SP": 0.5}
MESHES = {
    "2 shards": {"domain": 2},
    "4 shards": {"domain": 4},
    "8 shards": {"domain": 8},
    "dp 2 x 4 shards": {"dp": 2, "domain": 4},
    "dp 2 x tp 2 x 2 shards": {"dp": 2, "tp": 2, "domain": 2},
}


def test_a_key_that_is_not_there_is_an_error_of_one_line():
    tree = {"y_pred": 1, "y": 2, "y_processed": {"S": {"S/prognostic/3d/T": 3}}}
    with (
        pytest.raises(ValueError, match=r"the loss reads the key 'z', .*/3d/T$"),
        keys_of_tree("the loss", tree),
    ):
        tree["z"]


class Spectral(ConfiguredLoss):
    """Error of the zonal amplitude spectrum, averaged over latitude, by sample."""

    wavenum_init: int = 1

    def __call__(self, tree, context):
        prediction, target = tree["y_pred"], tree["y"]
        spectra = [
            context.row_mean(jnp.abs(jnp.fft.rfft(x, axis=-1)))
            for x in (prediction, target)
        ]
        error = jnp.square(spectra[0] - spectra[1])[..., self.wavenum_init :]
        return context.data_mean(error).mean()


def spectral_in_numpy(prediction, target, weights):
    spectra = [
        (np.abs(np.fft.rfft(x, axis=-1)) * weights).mean(axis=3)
        for x in (prediction, target)
    ]
    return np.square(spectra[0] - spectra[1])[..., 2:].mean()


class ByVariable(ConfiguredLoss):
    """The weighted sum of a loss for each of some variables."""

    def __call__(self, tree, context):
        prediction, target = tree["y_pred"], tree["y"]
        total = jnp.zeros((), prediction.dtype)
        for key, weight in WEIGHTS.items():
            place = context.layout.slices[key]
            error = prediction[:, place] - target[:, place]
            values = jnp.square(error) if "/3d/" in key else jnp.abs(error)
            total += weight * context.mean(values)
        return total


def by_variable_in_numpy(prediction, target, weights):
    error = prediction - target
    squares = (np.square(error[:, :3]) * weights).mean()
    return 2.0 * squares + 0.5 * (np.abs(error[:, 3:4]) * weights).mean()


class Crps(ConfiguredLoss):
    """Fair kernel CRPS: mean |x_i - y| - sum |x_i - x_j| / (2 m (m - 1))."""

    def __call__(self, tree, context):
        prediction, target = tree["y_pred"], tree["y"]
        members = context.members(prediction)
        skill = jnp.abs(members - target[:, None]).mean(axis=1)
        pairs = jnp.abs(members[:, :, None] - members[:, None]).sum(axis=(1, 2))
        count = context.num_members
        return context.mean(skill - pairs / (2 * count * (count - 1)))


def crps_in_numpy(prediction, target, weights):
    members = prediction.reshape(-1, 3, *prediction.shape[1:])
    skill = np.abs(members - target[:, None]).mean(axis=1)
    pairs = np.abs(members[:, :, None] - members[:, None]).sum(axis=(1, 2))
    return ((skill - pairs / 12) * weights).mean()


class Spherical(ConfiguredLoss):
    """Error after a transform along latitude, which needs all rows at once."""

    def transform(self, x, context):
        whole = jnp.fft.rfft(context.gather_rows(x), axis=-1)
        return jnp.einsum(
            "ly,bctym->bctlm",
            jnp.asarray(LEGENDRE, x.dtype),
            whole,
            precision="highest",
        )

    def __call__(self, tree, context):
        prediction, target = tree["y_pred"], tree["y"]
        error = self.transform(prediction, context) - self.transform(target, context)
        return context.gathered().data_mean(jnp.square(jnp.abs(error))).mean()


def spherical_in_numpy(prediction, target, weights):
    error = np.fft.rfft(prediction - target, axis=-1)
    error = np.einsum("ly,bctym->bctlm", LEGENDRE, error)
    return np.square(np.abs(error)).mean()


# Class, parameters, ensemble members, the same in numpy.
TOYS = {
    "spectral": (Spectral, {"wavenum_init": 2}, 1, spectral_in_numpy),
    "by_variable": (ByVariable, {}, 1, by_variable_in_numpy),
    "crps": (Crps, {}, 3, crps_in_numpy),
    "spherical": (Spherical, {}, 1, spherical_in_numpy),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, (cls, *_) in TOYS.items():
        monkeypatch.setitem(LOSSES, name, cls)


def toy_loss(name):
    section = LossConfig(
        training_loss=name,
        training_loss_parameters=TOYS[name][1],
        use_latitude_weights=True,
    )
    return build_loss(section, CHANNELS, latitude=LATITUDE)


def fields(members, dtype):
    target = draw((2, NUM, 1, LAT, LON), seed=1, dtype=dtype)
    prediction = 2 * draw((2 * members, NUM, 1, LAT, LON), seed=2, dtype=dtype)
    return prediction, target


@cache
def on_one_device(name, dtype):
    members = TOYS[name][2]
    arrays = fields(members, dtype)
    return loss_and_gradient(toy_loss(name), *arrays, num_members=members)


@pytest.mark.parametrize("name", TOYS)
def test_value_on_one_device(name):
    arrays = [x.astype(np.float64) for x in fields(TOYS[name][2], np.float32)]
    weights = latitude_weights(LATITUDE).astype(np.float64)[:, None]
    value, _ = on_one_device(name, np.float32)
    assert_close(value, TOYS[name][3](*arrays, weights), 1e-6, name)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", TOYS)
def test_same_on_every_mesh(name, mesh):
    compare(name, mesh, np.float32, 1e-6, 1e-5)


@pytest.mark.parametrize("name", TOYS)
def test_same_in_float64(name):
    with jax.enable_x64(True):
        compare(name, "dp 2 x 4 shards", np.float64, 1e-12, 1e-12)


def compare(name, mesh, dtype, tolerance, gradient_tolerance):
    members = TOYS[name][2]
    value, gradient = loss_and_gradient(
        toy_loss(name),
        *fields(members, dtype),
        make_mesh(**MESHES[mesh]),
        num_members=members,
    )
    assert gradient.dtype == dtype
    expected, expected_gradient = on_one_device(name, dtype)
    assert_close(value, expected, tolerance, f"{name} on {mesh}")
    assert_close(gradient, expected_gradient, gradient_tolerance, f"{name}, gradient")


def test_elementwise_losses_take_members():
    """The loss is the mean of the losses of the members."""
    prediction, target = fields(3, np.float32)
    loss = build_loss(LossConfig(training_loss="mse"))
    value, _ = loss_and_gradient(loss, prediction, target, num_members=3)
    expected = np.square(prediction - np.repeat(target, 3, axis=0)).mean()
    assert_close(value, expected, 1e-6, "mse of an ensemble")


@pytest.mark.slow
def test_channels_may_come_from_the_caller():
    """A library user builds a loss without a config."""
    loss = ByVariable()
    arrays = [jnp.asarray(x) for x in fields(1, np.float32)]
    context = field_context(LAT)
    with pytest.raises(ValueError, match=r"give the FieldContext `channels="):
        of_pair(loss)(*arrays, context)
    with_channels = dataclasses.replace(context, channels=LAYOUT)
    assert np.isfinite(of_pair(loss)(*arrays, with_channels))
