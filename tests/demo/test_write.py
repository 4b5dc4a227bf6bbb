"""Files of the demo data set, statistics, and folders left half-written."""

import os
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.demo import write


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    """A killed run's folder has a name of its own, and goes next time."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    killed = tmp_path / f".t21.partial-{socket.gethostname()}-{done.pid}"
    running = tmp_path / f".t21.partial-{socket.gethostname()}-{os.getppid()}"
    for folder in (killed, running):
        folder.mkdir()
    write.remove_leftovers(tmp_path / "t21")
    assert not killed.exists()
    assert running.exists()


def test_merged_statistics(rng):
    whole = rng.normal(3, 2, (12, 5, 4, 6)).astype(np.float32)
    statistics = write.Statistics()
    for part in np.split(whole, [1, 7]):
        statistics.add("T", part)
    count, mean, squares = statistics._sums["T"]
    assert np.allclose(mean, whole.mean((0, 2, 3), dtype=np.float64))
    std = whole.astype(np.float64).std((0, 2, 3))
    assert np.allclose(np.sqrt(squares / count), std)


def test_years_are_split(tmp_path, rng):
    axes = write.Axes(np.array([0.5]), np.array([45.0, -45.0]), np.array([0.0]))
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
