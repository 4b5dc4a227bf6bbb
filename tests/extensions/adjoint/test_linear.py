"""Tangents and adjoints of forecasts, their targets and growth."""

from functools import cache

import jax
import numpy as np
import pytest

from credit_jax.extensions.adjoint import (
    adjoint,
    area_weights,
    forecast_map,
    inner_product,
    linearized,
    singular_vectors,
    tangent_linear,
)
from credit_jax.extensions.adjoint.growth import ENERGY, energy_factors
from credit_jax.extensions.adjoint.target import parse_target
from credit_jax.forecast.labeled import open_forecaster
from credit_jax.forecast.outputs import Outputs
from credit_jax.named_fields.variables import Variable
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close

CASES = Cases("targets")

START = np.datetime64("2000-01-01", "ns")
T, SP = "ERA5/prognostic/3d/T", "ERA5/prognostic/2d/SP"
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


def misuse(call):
    def case(forecaster, initial):
        forecast = forecast_map(forecaster, initial, 1)
        return lambda: call(forecast, dict(forecast.state))

    return case


CASES.call("state", misuse(lambda forecast, state: forecast({SP: state[SP]})))
CASES.call(
    "perturbation",
    misuse(lambda f, state: tangent_linear(f, state, {**state, T: np.ones(2)})),
)
CASES.call("cotangent", misuse(lambda f, state: adjoint(f, state, {"Q": np.ones(2)})))
CASES.rows(
    lambda steps, forecaster, initial: forecast_map(forecaster, initial, steps),
    *(0, [], [1, -1]),
    name="steps",
)


@cache
def _opened(folder, mesh):
    parallelism, devices = MESHES[mesh]
    return open_forecaster(folder, parallelism=parallelism, devices=devices)


LONGITUDES = {
    "10W..20E": ((350.0, 360.0), (0.0, 20.0)),
    "170E..170W": ((170.0, 190.0),),
    "350..10E": ((350.0, 360.0), (0.0, 10.0)),
    "60..30W": ((300.0, 330.0),),
    "30..60W": ((300.0, 330.0),),
    "30W..60W": ((300.0, 330.0),),
    "0..0E": ((0.0, 0.0),),
    "0..360E": None,
    "180W..180E": None,
}


@pytest.mark.parametrize(("text", "expected"), LONGITUDES.items())
def test_longitudes(text, expected):
    region = parse_target(f"mean T500 in {text}").region
    assert region.longitudes == expected
    assert region.latitudes == ((-90.0, 90.0),)


def test_a_variable_named_like_a_level_of_another():
    """U10, the wind at 10 m, beside U at level 10, in any order."""
    deep = Variable("era/prognostic/3d/U", np.array([5.0, 10.0]))
    flat = Variable("era/diagnostic/2d/U10")
    for variables in ((deep, flat), (flat, deep)):
        outputs = Outputs(variables, np.zeros(1), np.zeros(1))
        places = {
            name: parse_target(f"mean {name}").place(outputs)
            for name in ("U5", "U10", "U_10")
        }
        assert places == {
            "U5": (deep.key, 0, "U"),
            "U10": (flat.key, 0, "U10"),
            "U_10": (deep.key, 1, "U"),
        }


def test_both_in_any_order():
    texts = "60..45S 10W..20E", "10W..20E 45S..60S"
    one, other = (parse_target(f"mean SP in {text}").region for text in texts)
    assert one.latitudes == other.latitudes == ((-60.0, -45.0),)
    assert one.longitudes == other.longitudes


CASES.rows(
    lambda text: parse_target(f"mean T500 in {text}"),
    "10N..20E",
    "80..95N",
    "0..400E",
    "10..20N 30..40N",
    "10..20N 30..40E 50..60E",
)


COUNT = 3


@pytest.fixture(scope="module")
def forecast(forecaster, initial):
    """Two steps, normalized, and the weights of a mean over the area."""
    normalized = forecast_map(forecaster, initial, [1, 2], units="normalized")
    return normalized, area_weights(normalized.state, forecaster.states.latitude)


def test_those_of_the_matrix(forecast):
    forecast, weights = forecast
    state = forecast.state
    vectors = singular_vectors(forecast, state, COUNT, weights)
    matrix = _matrix(forecast, weights)
    expected = np.linalg.svd(matrix, compute_uv=False)[:COUNT]
    assert_close(vectors.values, expected, 1e-5, "singular values")
    for number in range(COUNT):
        sizes = [
            sum(
                (w * fields[key][number].reshape(w.shape) ** 2).sum()
                for key, w in weights.items()
            )
            for fields in (vectors.initial, vectors.final)
        ]
        assert sizes[0] == pytest.approx(1, rel=1e-5)
        assert np.sqrt(sizes[1]) == pytest.approx(vectors.values[number], rel=1e-5)


def _matrix(forecast, weights):
    """W^1/2 M W^-1/2 of the last step, column by column."""
    linear = linearized(forecast, forecast.state)
    roots = {key: np.sqrt(weights[key]) for key in forecast.state}
    columns = []
    for key, field in forecast.state.items():
        for place in range(field.size):
            unit = {k: np.zeros_like(x) for k, x in forecast.state.items()}
            unit[key].flat[place] = 1 / roots[key].flat[place]
            tangents = linear.tangent_linear(unit)
            columns.append(
                np.concatenate(
                    [
                        np.ravel(np.asarray(tangents[k])[-1, 0] * r)
                        for k, r in roots.items()
                    ]
                )
            )
    return np.stack(columns, axis=1)


def growth_of(count, changed, samples=1):
    def case(forecast):
        of, weights = forecast
        state = {k: np.concatenate([x, x + 1][:samples]) for k, x in of.state.items()}
        return lambda: singular_vectors(of, state, count, {**weights, **changed})

    return case


CASES.call("no vectors", growth_of(0, {}))
CASES.call("another variable", growth_of(1, {"Q": np.ones(1)}))
CASES.call("a weight of 0", growth_of(1, {SP: np.zeros(1)}))
CASES.call("two samples", growth_of(1, {}, samples=2))
STANDARD = {"T": "air_temperature", "SP": "surface_air_pressure"}


def energy(**units):
    """Factors of an energy, over those of SI units."""
    described = {
        f"era/prognostic/2d/{name}": {"standard_name": STANDARD[name], "units": unit}
        for name, unit in units.items()
    }
    variables = tuple(map(Variable, described))
    outputs = Outputs(variables, np.zeros(1), np.zeros(1), described=described)
    factors = energy_factors(outputs, described)
    kinds = {key: x["standard_name"] for key, x in described.items()}
    return [f"{key}: {factors[key] / ENERGY[kinds[key]]:.6g}" for key in factors]


CASES.rows(energy, {"T": "K", "SP": "hPa"}, {"T": "degC"}, {"SP": "m"}, name="energy")


def test_variables_without_weights_are_not_perturbed(forecast):
    forecast, weights = forecast
    chosen = {key: x for key, x in weights.items() if key != SP}
    vectors = singular_vectors(forecast, forecast.state, 1, chosen)
    assert SP not in vectors.initial
    both = singular_vectors(forecast, forecast.state, 1, weights)
    assert 0 < vectors.values[0] <= both.values[0] * (1 + 1e-5)
