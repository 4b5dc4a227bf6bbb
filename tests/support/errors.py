"""Assertions on relative L2 errors, which print what they saw."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from credit_torch_bridge.compare.errors import relative_error


def assert_close(
    actual: ArrayLike, expected: ArrayLike, tolerance: float, what: str
) -> float:
    """Prints the relative error seen, and fails above `tolerance`.

    Returns:
        The relative error.
    """
    error = relative_error(actual, expected)
    print(f"{what}: relative error {error:.2e} (tolerance {tolerance:.0e})")
    shapes = f"shapes {np.shape(actual)} and {np.shape(expected)}"
    assert error <= tolerance, (
        f"{what}: relative error {error:.3e} is above {tolerance:.0e}; {shapes}"
    )
    return error


def assert_trees_close(
    actual: Mapping[str, ArrayLike],
    expected: Mapping[str, ArrayLike],
    tolerance: float,
    what: str,
) -> float:
    """`assert_close` for flat dicts: equal keys, and every array within `tolerance`.

    `chex.assert_trees_all_close` compares single elements, of which a gradient has many
    that are rounding alone; what is equal bit by bit goes to
    `chex.assert_trees_all_equal`. Here an array is measured against the larger of its
    own norm and 1e-3 of the largest norm of the dict, so that a gradient that is zero
    but for rounding is not measured by its rounding.

    Returns:
        The largest relative error.
    """
    missing, unknown = set(expected) - set(actual), set(actual) - set(expected)
    assert not missing, f"{what}: missing {sorted(missing)}"
    assert not unknown, f"{what}: not expected {sorted(unknown)}"
    norms = {key: _norm(value) for key, value in expected.items()}
    floor = 1e-3 * max(norms.values(), default=0.0)
    errors = {
        key: relative_error(actual[key], value) * norms[key] / max(norms[key], floor)
        if norms[key] > 0
        else _norm(actual[key]) / (floor or 1.0)
        for key, value in expected.items()
    }
    worst = max(errors, key=errors.__getitem__)
    print(
        f"{what}: worst of {len(errors)} arrays {errors[worst]:.2e} at {worst} "
        f"(tolerance {tolerance:.0e})"
    )
    above = {key: f"{e:.2e}" for key, e in errors.items() if not e <= tolerance}
    assert not above, f"{what}: above {tolerance:.0e}: {above}"
    return errors[worst]


def _norm(value: ArrayLike) -> float:
    return float(np.linalg.norm(np.asarray(value).astype(np.float64).ravel()))
