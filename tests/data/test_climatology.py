"""Climatology: means over the training period."""

import numpy as np
import pytest

from credit_jax.data import build_climatology, open_dataset
from tests.data.world import make_fields, parsed, raw_config


@pytest.fixture
def dataset(world):
    return open_dataset(parsed(raw_config(world)).data)


def test_mean_of_all_targets(dataset):
    climatology = build_climatology(dataset)
    times = dataset.starts + np.timedelta64(6, "h")
    expected = make_fields()["SP"].sel(time=times).mean("time").values
    actual = climatology.at(times[:2])
    assert actual.shape == (2, 6, 1, 6, 10)
    assert np.allclose(actual[1, 4, 0], expected, rtol=1e-6)


def test_months_and_seasons(dataset):
    by_month = build_climatology(dataset, "month")
    assert by_month.counts.tolist() == [17] + [0] * 10 + [15]
    times = np.array(["2003-12-09", "2003-05-01"], dtype="datetime64[ns]")
    december, may = by_month.at(times)
    assert not np.allclose(december, may)
    assert np.allclose(may, build_climatology(dataset).mean[0], rtol=1e-6)
    assert build_climatology(dataset, "season").counts.tolist() == [32, 0, 0, 0]


def test_fewer_samples(dataset):
    assert build_climatology(dataset, max_samples=5).counts.sum() == 5
