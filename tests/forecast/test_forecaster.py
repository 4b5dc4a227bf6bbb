"""One forward pass on every kind of mesh, from host and device arrays."""

import jax
import numpy as np
import pytest

from credit_jax.config.parallelism import parse_parallelism
from credit_jax.forecast import Forecaster
from credit_jax.nn import parameters
from credit_jax.plan import plan_model
from tests.data.world import MODEL
from tests.support import assert_close
from tests.training.conftest import tiny_model

__all__ = ["tiny_model"]

pytestmark = pytest.mark.usefixtures("tiny_model")


def forecaster(parallelism, num_devices):
    plan = plan_model(
        {**MODEL, "type": "tiny"},
        parse_parallelism(parallelism),
        num_devices=num_devices,
    )
    model = plan.build(jax.devices()[:num_devices])
    return Forecaster(model, *model.init(jax.random.key(0)))


@pytest.fixture
def x():
    shape = (4, 7, 1, MODEL["image_height"], MODEL["image_width"])
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_no_spectral_norm_is_left():
    found = forecaster("data=none", 1)
    assert found.model.model_def.matrices
    assert found.weights[1][parameters.SPECTRAL_NORM] == {}


@pytest.mark.parametrize(
    ("parallelism", "num_devices", "num_rows"),
    [("data=none,tensor=2,domain=4", 8, 8), ("data=fsdp2,domain=2", 4, 6)],
)
def test_every_mesh_forecasts_the_same(x, parallelism, num_devices, num_rows):
    serial = forecaster("data=none", 1)(x)
    assert serial.shape == (4, 6, 1, 6, 10)
    assert serial.dtype == np.float32
    found = forecaster(parallelism, num_devices)
    assert_close(found(x), serial, 1e-6, parallelism)
    on_mesh = found.step(found.place(x))
    assert on_mesh.shape == (4, 6, 1, num_rows, 10), "rows are padded on the mesh"
    assert_close(np.asarray(on_mesh)[..., :6, :], serial, 1e-6, parallelism)


def test_samples_that_cannot_be_shared(x):
    with pytest.raises(ValueError, match="4 samples, which 3 data-parallel devices"):
        forecaster("data=ddp", 3)(x)
