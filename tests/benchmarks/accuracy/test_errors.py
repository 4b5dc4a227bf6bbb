"""Errors between two runs."""

import numpy as np
import pytest

from benchmarks.accuracy.errors import errors_of
from benchmarks.accuracy.mesh_run import MeshRun
from credit_torch_bridge.compare.errors import relative_error


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
