"""Scores of a store: memory independent of its length, members, meshes."""

import tracemalloc

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.evaluation.forecast_files import valid_times
from credit_jax.evaluation.opening import (
    ScoreOptions,
    dims_of_scores,
    grid_of,
    open_comparison,
    open_forecasts,
    score_files,
)
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.sums import ScoreSums
from credit_jax.parallel.mesh.dims import ParallelDims

NUM_LAT, NUM_LON, NUM_LEVELS, NUM_MEMBERS = 48, 96, 6, 3
SPACE = {
    "latitude": np.linspace(88, -88, NUM_LAT),
    "longitude": np.arange(NUM_LON) * 360 / NUM_LON,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stores of forecasts of 2 and of 12 lead times, and the truth."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    hour = np.timedelta64(1, "h")
    levels = np.arange(NUM_LEVELS, dtype=float)
    starts = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
    times = starts[0] + 6 * np.arange(17) * hour
    coords = {"time": times, "level": levels, **SPACE}
    shape = [len(values) for values in coords.values()]
    truth = xr.Dataset({"T": ([*coords], rng.normal(size=shape).astype("f4"))}, coords)
    truth.to_zarr(folder / "truth.zarr", consolidated=False)
    for count in (2, 12):
        coords = {
            "time": starts,
            "number": np.arange(NUM_MEMBERS),
            "prediction_timedelta": (6 * np.arange(1, count + 1) * hour).astype(
                "m8[ns]"
            ),
            "level": levels,
            **SPACE,
        }
        shape = [len(values) for values in coords.values()]
        values = rng.normal(size=shape).astype("f4")
        store = xr.Dataset({"T": ([*coords], values)}, coords)
        chunks = {"T": {"chunks": (1, 1, 1, *shape[3:])}}
        store.to_zarr(folder / f"{count}.zarr", consolidated=False, encoding=chunks)
    return folder


def score(folder, count, **options):
    """Returns the sums and scores of a store."""
    files = open_forecasts(str(folder / f"{count}.zarr"))
    given = ScoreOptions(str(folder / "truth.zarr"), "none")
    comparison = open_comparison(given, files.grid.table, valid_times(files))
    grid = grid_of(files.grid.latitude, files.grid.longitude, REGIONS[:2])
    sums = score_files(files, comparison, grid, **options)
    members = options.get("num_members") or files.num_members
    return sums, dims_of_scores(comparison, grid, files.leads, members).scores(sums)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lead_time(folder):
    peaks = {}
    for count in (2, 12, 2):
        tracemalloc.start()
        sums, _ = score(folder, count)
        kept = sum(x.nbytes for x in sums.arrays.values())
        peaks[count] = tracemalloc.get_traced_memory()[1] - 4 * kept
        tracemalloc.stop()
    lead = 4 * NUM_MEMBERS * NUM_LEVELS * NUM_LAT * NUM_LON
    print({count: f"{peak / lead:.1f} lead times" for count, peak in peaks.items()})
    assert peaks[12] < peaks[2] + 2 * lead


def test_on_a_mesh(folder):
    """Rows are split over three devices, forecasts over two data-parallel ranks."""
    dims = ParallelDims(dp_replicate=2, domain=3, world_size=6)
    one, many = (
        score(folder, 2)[0],
        score(folder, 2, mesh=dims.build_mesh(jax.devices()[:6]))[0],
    )
    for name in ("forecast/squared", "forecast/crps", "members/power", "truth/power"):
        worst = np.max(np.abs(many.arrays[name] / one.arrays[name] - 1))
        print(f"{name}: {worst:.1e}")
        assert worst < 1e-6


def test_the_first_members(folder):
    _, whole = score(folder, 2)
    sums, one = score(folder, 2, num_members=1)
    assert "crps" in whole
    assert "crps" not in one
    assert one.attrs["num_members"] == 1
    with xr.open_zarr(folder / "2.zarr", consolidated=False) as store:
        own = store["T"].isel(number=0, prediction_timedelta=1, level=0).load()
    with xr.open_zarr(folder / "truth.zarr", consolidated=False) as store:
        valid = own["time"] + own["prediction_timedelta"]
        truth = store["T"].isel(level=0).sel(time=valid.values).load()
    error = (own.values - truth.values).astype(float)
    weights = np.cos(np.deg2rad(SPACE["latitude"]))[:, None]
    square = (error**2 * weights).sum() / (2 * weights.sum() * NUM_LON)
    found = one["rmse"].sel(system="forecast", region="global", channel="T0")[1]
    assert np.isclose(found, np.sqrt(square), rtol=1e-6)
    assert len(sums.starts) == 2


def test_sums_are_saved_merged_and_refused(folder, tmp_path):
    sums, _ = score(folder, 2)
    sums.save(tmp_path / "sums.npz")
    again = ScoreSums.load(tmp_path / "sums.npz")
    assert again.starts == sums.starts
    assert all(np.array_equal(again.arrays[k], x) for k, x in sums.arrays.items())
    with pytest.raises(ValueError, match="2000-01-01T00:00 is in both sums"):
        sums.merge(again)
    date = np.datetime64("2001-01-01", "ns")
    other = ScoreSums((date,), {"forecast/squared": np.ones(3)})
    with pytest.raises(ValueError, match="sums of other scores cannot be merged"):
        sums.merge(other)
