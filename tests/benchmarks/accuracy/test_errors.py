"""Errors between two runs."""

import numpy as np
import pytest

from benchmarks.accuracy.errors import Errors, errors_of
from benchmarks.accuracy.mesh_run import MeshRun
from credit_jax.ops.relative_error import relative_error


def test_errors_are_relative_and_small_arrays_are_not_measured_by_their_rounding():
    base = MeshRun(np.array([2.0]), np.zeros(1), np.array([3.0, 4.0]), 0.0)
    run = MeshRun(np.array([2.2]), np.zeros(1), np.array([3.0, 4.5]), 0.0)
    gradients = {"a": np.array([3.0, 4.0]), "b": np.array([1e-9])}
    away = {"a": np.array([3.0, 4.0]), "b": np.array([6e-9]), "idle": np.ones(3)}
    errors = errors_of(run, away, base, gradients)
    assert errors.forward == pytest.approx(0.1)
    assert errors.loss == [pytest.approx(0.1)]
    assert errors.arrays["b"] == pytest.approx(5e-9 / 5e-3)
    assert errors.gradient == pytest.approx(1e-9)
    assert relative_error(np.array([np.nan]), np.ones(1)) == float("inf")
    assert relative_error(np.ones(2), np.ones(1)) == float("inf")


def test_a_report_keeps_the_worst_of_many_arrays():
    arrays = {f"a{number}": number * 1.23456e-7 for number in range(9)}
    errors = Errors(1.23456e-7, 2e-7, arrays, [3e-7, 1.23456e-8], [])
    record = errors.as_json()
    assert [*record["arrays"]] == ["a8", "a7", "a6", "a5"]
    assert record["forward"] == 1.235e-7
    again = Errors.from_json(record)
    assert again.as_json() == record
    assert again.worst() == pytest.approx(errors.worst(), rel=1e-3)
