"""Singular vectors beside those of the whole matrix."""

import numpy as np
import pytest

from credit_jax.extensions.adjoint import (
    area_weights,
    forecast_map,
    linearized,
    singular_vectors,
)
from credit_jax.extensions.adjoint.growth import ENERGY, energy_factors
from credit_jax.forecast.outputs import Outputs
from credit_jax.named_fields.variables import Variable
from tests.support import assert_close

COUNT, SP = 3, "ERA5/prognostic/2d/SP"


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
                (
                    weights[key] * fields[key][number].reshape(weights[key].shape) ** 2
                ).sum()
                for key in weights
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


@pytest.mark.parametrize(
    ("count", "changed", "text"),
    [
        (0, {}, "count: got 0, expected 1 to 299"),
        (1, {"Q": np.ones(1)}, "weights: the variable 'Q' is not available; there are"),
        (1, {SP: np.zeros(1)}, "weights: .*SP must be positive, got 0"),
    ],
)
def test_misuse(forecast, count, changed, text):
    forecast, weights = forecast
    with pytest.raises(ValueError, match=text):
        singular_vectors(forecast, forecast.state, count, {**weights, **changed})


@pytest.mark.parametrize(
    ("units", "text"),
    [
        ({"T": "K", "SP": "Pa"}, None),
        ({"T": "degC"}, None),
        ({"SP": "m"}, "--norm energy: SP is in m, expected Pa; name the variables"),
    ],
)
def test_the_energy_is_of_units(units, text):
    standard = {"T": "air_temperature", "SP": "surface_air_pressure"}
    described = {
        f"era/prognostic/2d/{name}": {"standard_name": standard[name], "units": unit}
        for name, unit in units.items()
    }
    variables = tuple(Variable(key) for key in described)
    outputs = Outputs(variables, np.zeros(1), np.zeros(1), described=described)
    if text is None:
        factors = energy_factors(outputs, described)
        assert factors == {k: ENERGY[x["standard_name"]] for k, x in described.items()}
        return
    with pytest.raises(ValueError, match=text):
        energy_factors(outputs, described)


def test_the_energy_of_other_units_is_converted():
    described = {"P": {"standard_name": "surface_air_pressure", "units": "hPa"}}
    outputs = Outputs((Variable("P"),), np.zeros(1), np.zeros(1), described=described)
    expected = 1e4 * ENERGY["surface_air_pressure"]
    assert energy_factors(outputs, ["P"])["P"] == pytest.approx(expected)


def test_variables_without_weights_are_not_perturbed(forecast):
    forecast, weights = forecast
    chosen = {key: x for key, x in weights.items() if key != SP}
    vectors = singular_vectors(forecast, forecast.state, 1, chosen)
    assert SP not in vectors.initial
    both = singular_vectors(forecast, forecast.state, 1, weights)
    assert 0 < vectors.values[0] <= both.values[0] * (1 + 1e-5)


def test_samples_that_differ_are_refused(forecast):
    forecast, weights = forecast
    two = {key: np.concatenate([x, x + 1]) for key, x in forecast.state.items()}
    with pytest.raises(ValueError, match=r"the 2 samples of .* differ"):
        singular_vectors(forecast, two, 1, weights)
