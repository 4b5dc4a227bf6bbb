"""Assertions on relative L2 errors, which print the errors."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.accuracy.errors import errors_of_arrays
from credit_jax.ops.compensated import relative_error


def assert_close(
    actual: ArrayLike, expected: ArrayLike, tolerance: float, what: str
) -> float:
    """Prints the relative error, and fails if it exceeds `tolerance`."""
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

    An error is relative to the array's own norm, or to 1e-3 of the largest if that is
    more, so that a gradient that is zero up to rounding passes.
    """
    missing, unknown = set(expected) - set(actual), set(actual) - set(expected)
    assert not missing, f"{what}: missing {sorted(missing)}"
    assert not unknown, f"{what}: not expected {sorted(unknown)}"
    errors = errors_of_arrays(actual, expected, floor=1e-3)
    worst = max(errors, key=errors.__getitem__)
    print(
        f"{what}: worst of {len(errors)} arrays {errors[worst]:.2e} at {worst} "
        f"(tolerance {tolerance:.0e})"
    )
    above = {key: f"{e:.2e}" for key, e in errors.items() if not e <= tolerance}
    assert not above, f"{what}: above {tolerance:.0e}: {above}"
    return errors[worst]
