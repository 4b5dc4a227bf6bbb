"""Metrics of whole fields: spectral, of single variables, of an ensemble.

Toy metrics, each registered by one line, are compared with NumPy on one device and with
themselves on 2, 4 and 8 shards of latitude.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.config.loss import MetricsConfig
from credit_jax.metrics import METRICS, ConfiguredMetric, build_metrics
from credit_jax.named_fields import latitude_weights
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, of_pair, run_on_mesh

LAT, LON, MEMBERS = 13, 12, 3
CHANNELS = {"S/prognostic/3d/T": 3, "S/prognostic/2d/SP": 1, "S/diagnostic/2d/TP": 1}
NUM = sum(CHANNELS.values())
LATITUDE = np.linspace(80.0, -85.0, LAT)
WEIGHTS = latitude_weights(LATITUDE).astype(np.float64)[:, None]
MESHES = {
    "2 shards": {"domain": 2},
    "4 shards": {"domain": 4},
    "8 shards": {"domain": 8},
    "dp 2 x 4 shards": {"dp": 2, "domain": 4},
}


class SpectrumError(ConfiguredMetric):
    """Error of the zonal power spectrum of each variable."""

    wavenum_init: int = 0

    def __call__(self, pair):
        spectra = [
            pair.context.row_mean(jnp.square(jnp.abs(jnp.fft.rfft(x, axis=-1))))
            for x in (pair.ensemble_mean, pair.truth)
        ]
        error = jnp.abs(spectra[0] - spectra[1])[..., self.wavenum_init :]
        error = pair.context.data_mean(error)
        return pair.context.layout.per_variable(error.mean(axis=(1, 2)))


class Spread(ConfiguredMetric):
    """Standard deviation of the members about their mean."""

    def __call__(self, pair):
        deviation = pair.members - pair.ensemble_mean[:, None]
        return jnp.sqrt(pair.mean(jnp.square(deviation).mean(axis=1)))


class UpperLevelError(ConfiguredMetric):
    """Mean error of the first level of each variable, over all variables."""

    def __call__(self, pair):
        first = [place.start for place in pair.context.layout.slices.values()]
        error = (pair.ensemble_mean - pair.truth)[:, np.asarray(first)]
        return pair.context.channel_mean(jnp.abs(error))


def per_variable(values):
    return np.array([values[:3].mean(), values[3], values[4]])


def in_numpy(members, target):
    forecast = members.mean(axis=1)
    power = [
        (np.square(np.abs(np.fft.rfft(x, axis=-1))) * WEIGHTS).mean(axis=3)
        for x in (forecast, target)
    ]
    difference = np.abs(power[0] - power[1])[..., 2:].mean(axis=(0, 2, 3))
    variance = np.square(members - forecast[:, None]).mean(axis=1) * WEIGHTS
    error = (np.abs(forecast - target) * WEIGHTS).mean(axis=(0, 2, 3, 4))
    return {
        "spectrum_error": per_variable(difference),
        "spread": np.sqrt(per_variable(variance.mean(axis=(0, 2, 3, 4)))),
        "upper_level_error": error[[0, 3, 4]],
        "rmse": np.sqrt(
            per_variable(
                (np.square(members - target[:, None]) * WEIGHTS).mean(
                    axis=(0, 1, 3, 4, 5)
                )
            )
        ),
    }


@pytest.fixture
def metrics(monkeypatch):
    classes = {
        "spectrum_error": SpectrumError,
        "spread": Spread,
        "upper_level_error": UpperLevelError,
    }
    for name, cls in classes.items():
        monkeypatch.setitem(METRICS, name, cls)
    own = {name: {} for name in (*classes, "rmse")}
    own["spectrum_error"] = {"wavenum_init": 2}
    args = {"metrics": own, "use_latitude_weights": True}
    return build_metrics(MetricsConfig(args=args), CHANNELS, latitude=LATITUDE)


@pytest.fixture
def arrays():
    prediction = 2 * draw((2 * MEMBERS, NUM, 1, LAT, LON), seed=1)
    return prediction, draw((2, NUM, 1, LAT, LON), seed=2)


def test_values_on_one_device(metrics, arrays):
    prediction, target = arrays
    context = field_context(LAT, num_members=MEMBERS)
    found = of_pair(metrics)(jnp.asarray(prediction), jnp.asarray(target), context)
    members = prediction.reshape(2, MEMBERS, *prediction.shape[1:])
    expected = in_numpy(members.astype(np.float64), target.astype(np.float64))
    for name, values in expected.items():
        ours = [found[f"{name}/{key}"] for key in CHANNELS]
        assert_close(ours, values, 1e-6, name)
        assert_close(found[name], values.mean(), 1e-6, f"{name}, all variables")


@pytest.mark.parametrize("mesh", MESHES)
def test_same_on_every_mesh(mesh, metrics, arrays):
    prediction, target = (jnp.asarray(x) for x in arrays)
    serial = of_pair(metrics)(
        prediction, target, field_context(LAT, num_members=MEMBERS)
    )
    built = make_mesh(**MESHES[mesh])
    found = run_on_mesh(
        lambda p, t: of_pair(metrics)(
            p, t, field_context(LAT, built, num_members=MEMBERS)
        ),
        built,
        *arrays,
        out_specs=PartitionSpec(),
    )
    assert set(found) == set(serial)
    for name, value in found.items():
        assert_close(value, serial[name], 1e-6, f"{name} on {mesh}")


def test_wrong_parameters_name_the_metric(metrics):
    args = {"metrics": {"spectrum_error": {"wavenum": 2}}}
    text = r"metrics\.args\.metrics\.spectrum_error\.wavenum: unknown key"
    with pytest.raises(ValueError, match=text):
        build_metrics(MetricsConfig(args=args), CHANNELS)
