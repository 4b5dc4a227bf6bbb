"""Draws that are the same everywhere, and sketches that keep distances."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu import draws
from benchmarks.speed.cases import make_case
from credit_jax.models.conversion import from_state_dict, to_state_dict


def test_draws_are_those_of_the_committed_values() -> None:
    """Other numbers would make `models.npz` and `training.json` wrong."""
    found = draws.uniform("input x", (4,))
    assert found.dtype == np.float32
    expected = [-1.4752376, -0.63788068, 0.6199926, -1.55740082]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_draws_have_mean_0_and_variance_1() -> None:
    many = draws.uniform("many", (100, 1000))
    assert abs(many.mean()) < 0.01
    assert abs(many.var() - 1) < 0.01
    assert not np.array_equal(many, draws.uniform("others", (100, 1000)))


def test_a_drawn_state_has_no_constant_weights() -> None:
    model_def = make_case("tiny", "fuxi").model_def
    state = draws.drawn_state(model_def)
    assert state.keys() == to_state_dict(*(model_def, *_weights(model_def))).keys()
    for name, array in state.items():
        if array.dtype.kind == "f" and array.size > 8:
            assert np.unique(array).size > array.size / 2, name
    for name in (name for name in state if name.endswith(("weight_u", "weight_v"))):
        assert np.linalg.norm(state[name]) == pytest.approx(1)


def _weights(model_def):
    return from_state_dict(model_def, draws.drawn_state(model_def))


def test_sketches_are_linear_and_keep_norms(rng) -> None:
    a, b = rng.normal(size=(2, 40, 500))
    sketch = draws.sketch("name", a)
    assert sketch.shape == (draws.SUMS,)
    both = draws.sketch("name", a + 2 * b)
    np.testing.assert_allclose(both, sketch + 2 * draws.sketch("name", b))
    ratios = [
        np.linalg.norm(draws.sketch(str(seed), a)) / np.linalg.norm(a)
        for seed in range(50)
    ]
    assert abs(np.mean(np.square(ratios)) - 1) < 0.1
    assert np.array_equal(draws.sketch("name", np.arange(3)), [0, 1, 2])


def test_distances_say_what_differs(rng) -> None:
    arrays = {"a": rng.normal(size=(300, 10)), "b": rng.normal(size=(7,))}

    def sketches(arrays):
        return {name: draws.sketch(name, array) for name, array in arrays.items()}

    expected = sketches(arrays)
    assert draws.distance(expected, expected) == 0
    noise = rng.normal(size=(300, 10))
    near = sketches({**arrays, "a": arrays["a"] + 1e-3 * noise})
    assert 5e-4 < draws.distance(near, expected) < 2e-3
    broken = sketches({**arrays, "a": np.full((300, 10), np.nan)})
    for other in (broken, {"a": expected["a"]}, {**expected, "b": expected["b"][:3]}):
        assert draws.distance(other, expected) == np.inf
