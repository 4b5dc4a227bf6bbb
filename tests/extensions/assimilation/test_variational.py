"""4D-Var of one window: products, gradients, analyses beside dense algebra, twins."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.extensions.assimilation import OperatorEntry, analyze, operators
from credit_jax.extensions.assimilation.variational import (
    Guess,
    MissingFieldError,
    gauss_newton_step,
)
from credit_jax.forecast.labeled import open_forecaster
from tests.data.world import GRID
from tests.extensions.assimilation.windows import (
    START,
    config,
    drawn,
    window,
    with_truth,
)
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close

CASES = Cases("variational")
T = "ERA5/prognostic/3d/T"
MESHES = {
    "domain2": ("data=none,domain=2", 2),
    "domain4": ("data=none,domain=4", 4),
    "2x2": ("data=none,tensor=2,domain=2", 4),
}


@pytest.fixture(scope="module")
def problem(forecaster, initial):
    """A window with observations of a truth, and this truth."""
    return with_truth(window(forecaster, initial, drawn(200)))


def test_the_products_are_adjoint(problem):
    """<G x, y> = <x, G' y>, close to the rounding of float32."""
    window_, rng = problem[0], np.random.default_rng(0)
    guess, errors = (
        window_.at(np.zeros(window_.covariance.size)),
        window_.observed.errors,
    )
    x, y = rng.standard_normal(len(guess.control)), rng.standard_normal(len(errors))
    moved, pulled = guess.product(x), guess.transposed(y / errors)
    left, right = moved @ (y / errors), x @ pulled
    size = np.linalg.norm(moved / errors) * np.linalg.norm(y)
    assert abs(left - right) < 1e-6 * size
    assert abs(left) > 1e-3 * size, "the product says something"


def test_the_gradient_is_that_of_the_cost(problem):
    rng = np.random.default_rng(3)
    control = 0.3 * rng.standard_normal(problem[0].covariance.size)
    guess = problem[0].at(control)
    for direction in (rng.standard_normal(len(control)), guess.gradient):
        direction = direction / np.linalg.norm(direction)
        size = 0.2
        costs = [problem[0].at(control + s * size * direction).cost for s in (1, -1)]
        expected = (costs[0] - costs[1]) / (2 * size)
        scale = np.linalg.norm(guess.gradient)
        assert abs(guess.gradient @ direction - expected) < 2e-4 * scale


def test_a_step_solves_the_linear_problem(problem):
    """One outer iteration beside the dense solution with the matrix of G."""
    first = problem[0].at(np.zeros(problem[0].covariance.size))
    identity = np.eye(len(first.control))
    dense = np.stack([first.product(row) for row in identity], axis=1)
    scaled = dense / problem[0].observed.errors[:, None]
    departures = first.departures / problem[0].observed.errors
    expected = np.linalg.solve(identity + scaled.T @ scaled, scaled.T @ departures)
    rows = []
    analysis = analyze(
        problem[0],
        config(outer_iterations=1, inner_iterations=200, tolerance=1e-6),
        rows.append,
    )
    assert_close(analysis.last.control, expected, 2e-5, "control variable")
    # What the iterations say, without products of their own.
    cost = (expected @ expected + np.square(departures - scaled @ expected).sum()) / 2
    assert rows[-1].cost == pytest.approx(cost, rel=1e-6)
    assert rows[-1].gradient_norm < 1e-5 * np.linalg.norm(first.gradient)
    assert [row.inner for row in rows] == [*range(1, len(rows) + 1)]
    falling = [first.cost, *(row.cost for row in rows)]
    assert (np.diff(falling) <= 1e-9 * falling[0]).all()


def test_observations_at_the_start_are_combined_as_by_hand(forecaster, initial):
    """Without a forecast it is the best linear estimate, from dense B, H and R."""
    table = drawn(20)
    table["time"] = np.datetime64("2000-01-01", "ns")
    # At points of the grid, so that H picks values.
    rows, columns = np.arange(20) % 6, (7 * np.arange(20)) % 10
    table["latitude"] = GRID["latitude"][rows]
    table["longitude"] = GRID["longitude"][columns] - 360.0
    table.loc[table["variable"] != "SP", "level"] = 5.0
    problem, _ = with_truth(window(forecaster, initial, table))
    analysis = analyze(
        problem, config(outer_iterations=1, inner_iterations=200, tolerance=1e-7)
    )
    background = np.concatenate(
        [problem.background[k] for k in problem.covariance.levels]
    )
    b = problem.covariance.covariance
    units = np.eye(background.size).reshape(-1, *background.shape)
    dense = np.stack([b.fields(b.transposed(unit)).ravel() for unit in units])
    order = problem.observed.table
    channel = order["variable"].map({"U": 1, "T": 3, "SP": 4}).to_numpy()
    places = np.array([6 * 10 * c for c in channel])
    places += 10 * rows[order["row"] - 1] + columns[order["row"] - 1]
    innovation = order["value"].to_numpy() - np.float64(background.ravel()[places])
    gain_matrix = dense[np.ix_(places, places)] + np.diag(order["error"] ** 2)
    increment = dense[:, places] @ np.linalg.solve(gain_matrix, innovation)
    actual = np.concatenate([analysis.state[k] for k in problem.covariance.levels])
    difference = np.float64(actual) - background
    for channel in range(5):
        expected = increment.reshape(background.shape)[channel]
        assert_close(difference[channel], expected, 1e-4, f"channel {channel}")


def test_an_analysis_is_nearer_to_the_truth(forecaster, initial):
    """Errors fall, and twice the cost is about the number of observations.

    Later states of this model, of random weights, say little of the first one.
    """
    window_, truth = with_truth(window(forecaster, initial, drawn(200, hours=6.0)))
    analysis = analyze(window_, config())
    state = {k: np.asarray(x)[0, :, -1] for k, x in truth.linear.state.items()}
    for key, x in analysis.state.items():
        before = np.sqrt(np.square(window_.background[key] - state[key]).mean())
        after = np.sqrt(np.square(x - state[key]).mean())
        assert after < 0.6 * before, key
    assert 0.6 < analysis.chi_squared < 1.4
    assert analysis.last.cost < analysis.first.cost / 4
    assert not analysis.note
    assert {x.outer for x in analysis.iterations} == {1, 2}


@pytest.mark.slow(but=["domain4"])
@pytest.mark.parametrize("mesh", MESHES)
def test_meshes_make_the_same_analysis(problem, folder, initial, mesh):
    table = problem[0].observed.table
    expected, settings = analyze(problem[0], config()), config()
    analysis = analyze(window(_opened(folder, mesh), initial, table), settings)
    assert len(analysis.iterations) == len(expected.iterations)
    for key, x in expected.state.items():
        increment = x - problem[0].background[key]
        actual = analysis.state[key] - problem[0].background[key]
        assert_close(actual, increment, 1e-4, f"increment of {key}")
        assert_close(analysis.state[key], x, 1e-5, key)


class Saturating:
    """An arc tangent of T at a point, which is flat at the background."""

    def prepare(self, observations, grid):
        return np.float32(observations["center"])

    def __call__(self, arrays, trajectory):
        return jnp.arctan(trajectory[T][0, 0, 0, 0] - arrays)


class Mean(Saturating):
    """One value for all observations."""

    def __call__(self, arrays, trajectory):
        return trajectory[T].mean()


@pytest.fixture
def flat(forecaster, initial, monkeypatch):
    """`flat(operator, count, **columns)` -> a window observed by an operator."""

    def make(operator, count=1, **columns):
        entry = OperatorEntry(lambda variable, grid: operator())
        monkeypatch.setitem(operators.OPERATORS, "mine", entry)
        table = drawn(count).assign(variable="flat", **columns)
        return window(forecaster, initial, table, {"flat": "mine"})

    return make


def test_a_step_that_raises_the_cost_is_not_taken(flat, initial):
    """Gauss-Newton overshoots where the operator is far from linear."""
    value = float(initial["T"].isel(time=0, level=0, latitude=0, longitude=0))
    problem = flat(Saturating, error=0.01, center=value + 3.0)
    analysis = analyze(problem, config())
    assert "would raise the cost" in analysis.note
    assert analysis.last is analysis.first
    assert analysis.chi_squared == pytest.approx(2 * analysis.first.cost)


@CASES.case
def values_that_are_not_finite(flat):
    problem = flat(Saturating, center=np.nan)
    return lambda: analyze(problem, config())


@CASES.case
def one_value_for_all_observations(flat):
    problem = flat(Mean, count=3, center=0.0)
    return lambda: analyze(problem, config())


def test_without_observations_the_background_stays(forecaster, initial):
    problem = window(forecaster, initial, drawn().iloc[:0])
    analysis = analyze(problem, config())
    for key, x in problem.background.items():
        np.testing.assert_array_equal(analysis.state[key], x)
    assert analysis.iterations == ()


def hole(forecaster, initial, key, columns):
    """A window of SP and T whose background lacks a field in some columns."""
    table = drawn(6).assign(variable=["SP", "T"] * 3, level=2.0)
    table["latitude"], table["longitude"] = 75.0, 36.0 * np.arange(6)
    problem = window(forecaster, initial, table)
    field = problem.background[key].copy()
    field[0, 0, columns] = np.nan
    return replace(problem, background={**problem.background, key: field})


def test_a_field_that_is_missing_is_named(forecaster, initial):
    """Where the background lacks it; otherwise the forecast is not finite."""
    problem = hole(forecaster, initial, "ERA5/prognostic/2d/SP", slice(2, 5))
    with pytest.raises(MissingFieldError) as error:
        analyze(problem, config())
    assert error.value.missing.tolist() == [False, True, True, False, False, False]
    assert error.value.line in str(error.value)


def of_missing(key, columns):
    def case(forecaster, initial):
        problem = hole(forecaster, initial, f"ERA5/prognostic/{key}", columns)
        return lambda: analyze(problem, config())

    return case


CASES.call("the background lacks SP", of_missing("2d/SP", slice(2, 5)))
# Of U there are no observations: without a fill of it the forecast fails.
CASES.call("the background lacks U", of_missing("3d/U", slice(None)))


def test_a_neighbor_without_weight_may_be_missing(forecaster, initial):
    """At the start, on a point beside one without a value."""
    table = drawn(1).assign(variable="SP", latitude=75.0, longitude=36.0, time=START)
    problem = window(forecaster, initial, table)
    state = {key: np.array(x) for key, x in problem.forecast.state.items()}
    fields = {k: np.zeros((3, 1, *x.shape[1:2], 6, 10)) for k, x in state.items()}
    for x in state.values():
        x[..., 1:, :], x[..., 0, 2:] = np.nan, np.nan
    value = problem.observer.values(problem.observed, state, fields)
    expected = initial["SP"].isel(time=0, latitude=0, longitude=1)
    np.testing.assert_allclose(value, float(expected), rtol=1e-6)


@cache
def _opened(folder, mesh):
    parallelism, devices = MESHES[mesh]
    return open_forecaster(folder, parallelism=parallelism, devices=devices)


class Rounded(Guess):
    """A linear problem with a wide spectrum, whose products are rounded at random."""

    def __init__(self, matrix, departures, seed):
        errors = np.ones(len(departures))
        window_ = SimpleNamespace(observed=SimpleNamespace(errors=errors))
        values = {"window": window_, "matrix": matrix, "scaled": departures}
        vars(self).update(values, rng=np.random.default_rng(seed), cost=0.0)

    def rounded(self, x):
        noise = self.rng.standard_normal(len(x))
        return x + 3e-7 * np.linalg.norm(x) / len(x) ** 0.5 * noise

    @property
    def gradient(self):
        return -self.rounded(self.matrix.T @ self.scaled)

    def product(self, change):
        return self.rounded(self.matrix @ change)

    def transposed(self, weights):
        return self.rounded(self.matrix.T @ weights)


def test_rounding_does_not_grow_over_many_iterations():
    """Residuals stay orthogonal; without that two solutions differ by 6e-4."""
    rng, (rows, columns) = np.random.default_rng(0), (600, 1500)
    u, _, v = np.linalg.svd(rng.standard_normal((rows, columns)), full_matrices=False)
    sizes = 30 * np.geomspace(1, 1e-3, rows)
    problem = (u * sizes) @ v, rng.standard_normal(rows) * sizes.mean() ** 0.5
    settings = config(inner_iterations=60, tolerance=1e-9)
    one, other = (
        gauss_newton_step(Rounded(*problem, seed), settings, 1, lambda _: None)
        for seed in (1, 2)
    )
    assert_close(one, other, 5e-5, "after 60 iterations")
