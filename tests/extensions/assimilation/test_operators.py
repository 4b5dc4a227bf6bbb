"""Observation operators."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.extensions.assimilation import OperatorEntry, TrajectoryGrid, operators
from credit_jax.extensions.assimilation.operators import (
    Interpolation,
    neighbors,
    operators_of,
)
from tests.extensions.assimilation.windows import (
    GRID_OF_RUN,
    START,
    STEP,
    VARIABLES,
    drawn,
)

T = VARIABLES[1]


@pytest.mark.parametrize("flipped", [False, True])
def test_interpolation_is_that_of_xarray(flipped):
    """Linear along every dim, rows in any order, across 0 and 360 degrees."""
    table = drawn(200)
    table["variable"] = "T"
    table["level"] = np.random.default_rng(0).uniform(1, 5, 200)
    latitude = GRID_OF_RUN.latitude[:: -1 if flipped else 1]
    longitude = GRID_OF_RUN.longitude - (180 if flipped else 0)
    grid = TrajectoryGrid({"T": T}, latitude, longitude, GRID_OF_RUN.times)
    field = np.random.default_rng(0).normal(0, 1, (4, 2, 6, 10)).astype(np.float32)
    around = np.concatenate([field] * 3, -1)
    expected = xr.DataArray(
        around,
        {
            "time": (GRID_OF_RUN.times - START) / STEP,
            "level": T.levels,
            "latitude": latitude,
            "longitude": np.concatenate([longitude + k for k in (-360, 0, 360)]),
        },
        ("time", "level", "latitude", "longitude"),
    ).interp(
        time=("obs", (table["time"].to_numpy() - START) / STEP),
        level=("obs", table["level"]),
        latitude=("obs", table["latitude"]),
        longitude=("obs", table["longitude"]),
    )
    operator = Interpolation(T.key, "T")
    values = operator(operator.prepare(table, grid), {T.key: jax.numpy.asarray(field)})
    np.testing.assert_allclose(values, expected, atol=2e-6)


def test_neighbors():
    places, weights = neighbors(np.array([5.0, 1.0]), np.array([1.0, 2.0, 5.0]))
    assert places.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert weights.tolist() == [[1.0, 0.75, 0.0], [0.0, 0.25, 1.0]]
    circle = np.array([10.0, 130.0, 250.0])
    places, weights = neighbors(circle, np.array([-50.0, 370.0]), period=360.0)
    assert places[:, 0].tolist() == [2, 0]
    assert weights[:, 0].tolist() == [0.5, 0.5]
    assert (places[0, 1], weights[0, 1]) == (0, 1.0)
    places, weights = neighbors(np.array([3.0]), np.zeros(1))
    assert places.tolist() == [[0], [0]]


def test_operators_of_the_user(monkeypatch):
    class Mine(SimpleNamespace):
        prepare = __call__ = print

    entry = OperatorEntry(lambda variable, grid: Mine(variable=variable, grid=grid))
    monkeypatch.setitem(operators.OPERATORS, "mine", entry)
    chosen = operators_of({"TB": "mine"}, GRID_OF_RUN)
    assert chosen["TB"] == Mine(variable="TB", grid=GRID_OF_RUN)
    assert chosen["SP"] == Interpolation("ERA5/prognostic/2d/SP", "SP")
    text = r"assimilation.operators.TB: the operator 'mien' is not available; .*'mine'"
    with pytest.raises(ValueError, match=text):
        operators_of({"TB": "mien"}, GRID_OF_RUN)
    no_operator = OperatorEntry(lambda variable, grid: abs)
    monkeypatch.setitem(operators.OPERATORS, "mine", no_operator)
    text = "TB: 'mine' builds a builtin_function_or_method; expected .* prepare"
    with pytest.raises(ValueError, match=text):
        operators_of({"TB": "mine"}, GRID_OF_RUN)
