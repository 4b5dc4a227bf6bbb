"""Loaders of a config: their splits, sizes and grids."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.data import build_loader
from tests.data.damaged import refused
from tests.data.world import (
    FLAT,
    GRID,
    NUM_LAT,
    NUM_LON,
    TIMES,
    parsed,
    raw_config,
    save,
)


def test_validation_is_in_order_and_complete(world):
    raw = raw_config(
        world,
        validation_data={
            "start_datetime": "2000-01-02",
            "end_datetime": "2000-01-03T06",
        },
    )
    loader = build_loader(parsed(raw), split="valid")
    times = np.concatenate([batch.input_times for batch in loader.epoch(0)])
    assert [str(t)[:13] for t in times] == [
        f"2000-01-02T{hour}" for hour in ("00", "06", "12", "18")
    ] + ["2000-01-03T00"]


def test_batch_larger_than_the_data(folder):
    refused(folder, "no full batch: 32 samples", trainer__train_batch_size=40)


def test_a_source_on_another_grid_is_regridded(world, tmp_path):
    """Every point of the coarse grid maps to two rows and two columns."""
    coarse = xr.Dataset(
        {"soil": (FLAT, np.arange(len(TIMES) * 15.0).reshape(-1, 3, 5))},
        {"time": TIMES, "latitude": [60.0, 0.0, -60.0], "longitude": np.arange(5) * 72},
    )
    save(coarse, tmp_path / "soil.nc")
    rows, columns = np.divmod(np.arange(NUM_LAT * NUM_LON), NUM_LON)
    weights = {
        "row": ("n_s", np.arange(NUM_LAT * NUM_LON) + 1),
        "col": ("n_s", rows // 2 * 5 + columns // 2 + 1),
        "S": ("n_s", np.ones(NUM_LAT * NUM_LON)),
        "dst_grid_dims": ("rank", [NUM_LON, NUM_LAT]),
        "xc_b": ("n_b", GRID["longitude"][columns]),
        "yc_b": ("n_b", GRID["latitude"][rows]),
        "xc_a": ("n_a", np.zeros(15)),
    }
    xr.Dataset(weights).to_netcdf(tmp_path / "weights.nc")
    raw = raw_config(world)
    variables = {
        "dynamic_forcing": {"vars_2D": ["soil"], "path": f"{tmp_path}/soil.nc"}
    }
    raw["data"]["source"]["LAND"] = {"dataset_type": "local", "variables": variables}
    args = {
        "weight_file": f"{tmp_path}/weights.nc",
        "variables": ["LAND/dynamic_forcing/2d/soil"],
    }
    steps = raw["preblocks"]["per_step"]
    with pytest.raises(ValueError, match=r"soil\.nc: soil has a grid of 3 x 5"):
        build_loader(parsed(raw), split="train")
    raw["preblocks"]["per_step"] = {"new": {"type": "regrid", "args": args}, **steps}
    loader = build_loader(parsed(raw), split="train", grid=(NUM_LAT, NUM_LON))
    batch = loader.read([0])
    place = loader.schema.input_slices()["LAND/dynamic_forcing/2d/soil"]
    first = coarse["soil"].sel(time=batch.input_times[0]).values
    assert np.array_equal(batch.x[0, place][0, 0], first.repeat(2, 0).repeat(2, 1))
    args["variables"] = ["ERA5/prognostic/2d/none"]
    with pytest.raises(ValueError, match=r"must agree in all but the levels.*soil"):
        build_loader(parsed(raw), split="train")
