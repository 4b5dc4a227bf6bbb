"""Files of the demo data set, and their statistics."""

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.extensions.demo import write


def test_merged_statistics(rng):
    whole = rng.normal(3, 2, (12, 5, 4, 6)).astype(np.float32)
    statistics = write.LevelStatistics()
    for part in np.split(whole, [1, 7]):
        statistics.add("T", part)
    count, mean, squares = statistics._sums["T"]
    assert np.allclose(mean, whole.mean((0, 2, 3), dtype=np.float64))
    std = whole.astype(np.float64).std((0, 2, 3))
    assert np.allclose(np.sqrt(squares / count), std)


def test_years_are_split(tmp_path, rng):
    axes = write.DemoCoordinates(
        np.array([0.5]), np.array([45.0, -45.0]), np.array([0.0])
    )
    writer = write.YearWriter(tmp_path, axes)
    times = pd.date_range("2000-12-30", periods=16, freq="6h")
    fields = rng.normal(size=(16, 2, 1)).astype(np.float32)
    for part in (slice(0, 4), slice(4, 16)):
        writer.add(times[part], {"SP": fields[part]})
    years = [xr.open_dataset(tmp_path / f"demo_{y}.zarr") for y in (2000, 2001)]
    assert [year.sizes["time"] for year in years] == [8, 8]
    joined = np.concatenate([year["SP"].values for year in years])
    assert np.array_equal(joined, fields)
    found = np.concatenate([year.time.values for year in years])
    assert np.array_equal(found, times.values)
