"""The best linear estimate of the demo, beside dense algebra."""

import numpy as np

from benchmarks.assimilation_bound import best_estimate
from tests.extensions.assimilation.test_background import covariance


def test_the_best_estimate_is_that_of_dense_matrices():
    b, rng = covariance(truncation=4), np.random.default_rng(0)
    shape = len(b.channels), 16, 32
    observed, sizes = rng.random(shape) < 0.02, np.array([1.0, 2.0, 3.0])
    values = b.fields(rng.standard_normal(b.shape))
    places = np.flatnonzero(observed)
    columns = []
    for place in places:
        unit = np.zeros(shape)
        unit.flat[place] = 1
        columns.append(b.fields(b.transposed(unit)).ravel())
    dense = np.stack(columns)
    errors = np.repeat(sizes, 16 * 32)[places]
    system = dense[:, places] + np.diag(errors**2)
    expected = np.linalg.solve(system, values.ravel()[places]) @ dense
    actual = best_estimate(b, values, observed, sizes).ravel()
    assert np.linalg.norm(actual - expected) < 0.03 * np.linalg.norm(expected)
