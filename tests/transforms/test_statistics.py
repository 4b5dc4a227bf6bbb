"""Merged statistics of batches against those of all samples."""

import numpy as np
import pytest

from credit_jax.transforms.statistics import Digests, Extremes, MeanAndVariance

SHAPE = (6, 3, 2, 4, 5)


@pytest.fixture
def values(rng):
    """Returns six samples on three levels, one level far from 0, with some NaN."""
    x = rng.normal(0, 1, SHAPE) + np.array([0.0, 1e5, -3.0]).reshape(1, 3, 1, 1, 1)
    x[rng.random(SHAPE) < 0.1] = np.nan
    return x.astype(np.float32)


def merged(kind, parts, *args):
    total = kind.of(parts[0], *args)
    for part in parts[1:]:
        total = total.merged(kind.of(part, *args))
    return total


@pytest.mark.parametrize(("axis", "others"), [(1, (0, 2, 3, 4)), (-1, (0, 1, 2, 3))])
@pytest.mark.parametrize("size", [1, 4, 6])
def test_merged_batches_are_the_whole(values, axis, others, size):
    parts = [values[i : i + size] for i in range(0, 6, size)]
    moments, extremes = (
        merged(kind, parts, axis) for kind in (MeanAndVariance, Extremes)
    )
    exact = values.astype(np.float64)
    assert np.array_equal(moments.count, np.isfinite(exact).sum(others))
    assert np.array_equal(extremes.count, moments.count)
    np.testing.assert_allclose(moments.mean, np.nanmean(exact, others), rtol=1e-13)
    np.testing.assert_allclose(moments.variance, np.nanvar(exact, others), rtol=1e-10)
    assert np.array_equal(extremes.low, np.nanmin(values, others))
    assert np.array_equal(extremes.high, np.nanmax(values, others))
    assert extremes.low.dtype == np.float32


def test_a_batch_without_values_changes_nothing(values):
    empty = values[:2].copy()
    empty[:, 1] = np.nan
    for kind, names in (
        (MeanAndVariance, ("count", "mean", "variance")),
        (Extremes, ("count", "low", "high")),
    ):
        alone, after = kind.of(values, 1), kind.of(empty, 1).merged(kind.of(values, 1))
        before = kind.of(values, 1).merged(kind.of(empty, 1))
        for name in names:
            for other in (after, before):
                assert getattr(other, name)[1] == getattr(alone, name)[1], name


def test_digests_keep_ends_and_counts(values):
    digests = merged(Digests, [values[:3], values[3:]], 1, 50)
    attributes = digests.attributes()
    assert np.array_equal(digests.count, MeanAndVariance.of(values, 1).count)
    assert np.array_equal(attributes["min_"], np.nanmin(values, (0, 2, 3, 4)))
    assert attributes["centroids_mean_stacked"].shape[0] == 3
    assert attributes["centroids_count"].max() < 100
