"""Forecasts as functions of their state, tangent-linear models and adjoints."""

import re
from functools import cache

import jax
import numpy as np
import pytest

from credit_jax.extensions.adjoint import (
    adjoint,
    forecast_map,
    inner_product,
    linearized,
    tangent_linear,
)
from credit_jax.forecast.labeled import open_forecaster
from tests.support import assert_close

START = np.datetime64("2000-01-01", "ns")
T = "ERA5/prognostic/3d/T"
MESHES = {
    "one": ("data=none", 1),
    "tp2": ("data=none,tensor=2", 2),
    "domain2": ("data=none,domain=2", 2),
    "domain4": ("data=none,domain=4", 4),
    "2x2": ("data=none,tensor=2,domain=2", 4),
}


def drawn(fields, seed=0):
    """Random perturbations of the size of each field."""
    rng = np.random.default_rng(seed)
    return {
        key: (np.std(x) * rng.standard_normal(x.shape)).astype(x.dtype)
        for key, x in sorted(fields.items())
    }


@pytest.fixture(scope="module")
def steps(forecaster, initial):
    """Three steps of the forecast."""
    return [*forecaster(initial, 3)]


def test_the_map_makes_the_forecast(forecaster, initial, steps):
    forecast = forecast_map(forecaster, initial, [1, 3])
    fields = forecast(forecast.state)
    for key, field in fields.items():
        name = key.split("/")[-1]
        for place, number in enumerate(forecast.leads):
            expected = steps[number - 1][name].values[0]
            actual = np.reshape(field[place, 0], expected.shape)
            assert_close(actual, expected, 1e-6, f"{name}, step {number}")


def test_normalized_units(forecaster, initial):
    """The same forecast, normalized as the preblocks normalize."""
    physical = forecast_map(forecaster, initial, 2)
    forecast = forecast_map(forecaster, initial, 2, units="normalized")
    normal, expected = forecast(forecast.state), physical(physical.state)
    assert forecast.normalization is not None
    fields = {key: np.asarray(x[0])[:, :, None] for key, x in normal.items()}
    back = forecast.normalization.denormalize(fields)
    for key, field in expected.items():
        assert_close(back[key][:, :, 0], field[0], 1e-6, key)
        assert key not in forecast.state or np.abs(normal[key]).max() < 20


@pytest.mark.slow(but=["2x2-physical", "domain4-normalized"])
@pytest.mark.parametrize("units", ["physical", "normalized"])
@pytest.mark.parametrize("mesh", MESHES)
def test_products(folder, initial, mesh, units):
    """<M x, y> = <x, M' y>, and the gradient is that of one device."""
    forecaster = _opened(folder, mesh)
    forecast = forecast_map(forecaster, initial, [1, 3], units=units)
    linear = linearized(forecast, forecast.state)
    x = drawn(forecast.state)
    y = drawn(jax.device_get(forecast(forecast.state)), seed=1)
    fields, tangents = tangent_linear(forecast, forecast.state, x)
    again, gradient = adjoint(forecast, forecast.state, y)
    left, right = inner_product(tangents, y), inner_product(x, gradient)
    size = np.sqrt(inner_product(tangents, tangents) * inner_product(y, y))
    assert abs(left - right) < 1e-6 * size
    assert abs(left) > 1e-4 * size, "the product says something"
    assert_close(linear.adjoint(y)["ERA5/prognostic/3d/T"], gradient[T], 1e-6, "M' y")
    one = forecast_map(_opened(folder, "one"), initial, [1, 3], units=units)
    expected, moved = adjoint(one, one.state, y)[1], tangent_linear(one, one.state, x)
    for key in gradient:
        assert_close(gradient[key], expected[key], 1e-6, f"M' y of {key}")
    for key in fields:
        assert_close(fields[key], moved[0][key], 1e-6, key)
        assert_close(again[key], moved[0][key], 1e-6, key)
        assert_close(tangents[key], moved[1][key], 1e-6, f"M x of {key}")


@pytest.mark.slow
def test_data_parallel_devices_have_copies(folder, initial):
    """Each a sample, of the same forecast and gradient as that of one device."""
    forecaster = open_forecaster(folder, parallelism="data=ddp,domain=2", devices=4)
    forecast, one = (
        forecast_map(x, initial, 2) for x in (forecaster, _opened(folder, "one"))
    )
    y = drawn(jax.device_get(one(one.state)), seed=1)
    fields, gradient = adjoint(
        forecast, forecast.state, {k: np.repeat(x, 2, axis=1) for k, x in y.items()}
    )
    expected = adjoint(one, one.state, y)
    for key, field in forecast.state.items():
        assert field.shape[0] == 2
        assert_close(fields[key], np.repeat(expected[0][key], 2, 1), 1e-6, key)
        both = np.repeat(expected[1][key], 2, 0)
        assert_close(gradient[key], both, 1e-6, f"M' y of {key}")


def test_gradient_of_a_user(forecaster, initial):
    """The map is a function like any other, inside of `jit` and `grad`, too."""
    forecast = forecast_map(forecaster, initial, 2)

    def mean(state):
        return forecast(state)[T][-1, :, 0].mean()

    gradient = jax.jit(jax.grad(mean))(forecast.state)
    fields = forecast(forecast.state)
    weight = np.zeros(fields[T].shape, np.float32)
    weight[-1, :, 0] = 1 / weight[-1, :, 0].size
    expected = adjoint(forecast, forecast.state, {T: weight})[1]
    for key, field in expected.items():
        assert_close(gradient[key], field, 1e-6, key)


def test_misuse(forecaster, initial):
    forecast = forecast_map(forecaster, initial, 1)
    state = dict(forecast.state)
    with pytest.raises(ValueError, match="state: lacks ERA5/prognostic/3d/T;"):
        forecast({key: x for key, x in state.items() if key != T})
    with pytest.raises(ValueError, match=r"perturbation: .*/T has shape \(2,\)"):
        tangent_linear(forecast, state, {**state, T: np.ones(2)})
    with pytest.raises(ValueError, match=r"cotangents: has no variable Q; expected"):
        adjoint(forecast, state, {"Q": np.ones(2)})
    for steps in (0, [], [1, -1]):
        text = re.escape(f"steps: got {steps!r}, expected numbers of steps from 1")
        with pytest.raises(ValueError, match=text):
            forecast_map(forecaster, initial, steps)


@cache
def _opened(folder, mesh):
    parallelism, devices = MESHES[mesh]
    return open_forecaster(folder, parallelism=parallelism, devices=devices)
