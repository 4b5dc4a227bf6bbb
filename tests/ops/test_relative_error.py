"""The relative L2 error."""

import numpy as np
import pytest

from credit_jax.ops.compensated import relative_error


def test_relative_error_sees_what_it_must():
    x = np.ones((2, 3))
    assert relative_error(x, x) == 0
    assert relative_error(x * np.nan, x) == np.inf
    assert relative_error(x[:1], x) == np.inf
    assert relative_error(1.1 * x, x) == pytest.approx(0.1)
    assert relative_error(np.nan, np.nan) == np.inf
    assert relative_error(x, 0 * x) == pytest.approx(np.sqrt(6))
