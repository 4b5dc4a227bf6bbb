"""`regrid` by weight files of ESMF, against CREDIT, and the grid after it."""

import re

import numpy as np
import pytest
import xarray as xr

from credit_jax.transforms import Phase, channel_units
from tests.support import assert_close
from tests.transforms.cases import CONCAT, SP, T, group, preblocks
from tests.transforms.credit_blocks import (
    NUM_COLUMNS,
    NUM_ROWS,
    built,
    fields,
    host_results,
)

LATITUDE, LONGITUDE = np.array([60.0, 0.0, -60.0]), np.array([0.0, 120.0])
OLD, NEW = NUM_ROWS * NUM_COLUMNS, len(LATITUDE) * len(LONGITUDE)


def write_weights(path, *, structured=True, curved=None):
    """Writes weights: each new point is a mean of old ones; one pair occurs twice."""
    rng = np.random.default_rng(1)
    row = np.concatenate([np.repeat(np.arange(NEW), 5), [0, 0]])
    col = np.concatenate([rng.integers(0, OLD, 5 * NEW), [3, 3]])
    order = rng.permutation(len(row))
    latitude, longitude = (
        own.ravel() for own in np.meshgrid(LATITUDE, LONGITUDE, indexing="ij")
    )
    bend = np.arange(NEW)
    content = {
        "row": ("n_s", row[order] + 1),
        "col": ("n_s", col[order] + 1),
        "S": ("n_s", rng.uniform(0, 0.4, len(row))),
        "dst_grid_dims": ("rank", [2, 3] if structured else [NEW]),
        "xc_b": ("n_b", longitude + bend * (curved == "longitude")),
        "yc_b": ("n_b", latitude + bend * (curved == "latitude")),
        "xc_a": ("n_a", np.zeros(OLD)),
    }
    xr.Dataset(content).to_netcdf(path)
    return str(path)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, {}),
        ({}, {"flip_axis": [-2, -1]}),
        ({}, {"flip_axis": [-1, -3]}),
        ({}, {"reshape_to_xy": False}),
        ({"structured": False}, {}),
        ({"structured": False}, {"reshape_to_xy": False}),
    ],
)
def test_as_credit(credit, tmp_path, options, args):
    import torch
    from credit.preblock.regrid import Regridder

    path = write_weights(tmp_path / "weights.nc", **options)
    args = {"weight_file": path, "variables": [T], **args}
    theirs = Regridder(**args)
    batch = {key: torch.tensor(x) for key, x in fields().items()}
    expected = theirs({"input": {"S": batch}})["input"]["S"]
    ours = built("preblocks", "regrid", **args)
    found = host_results(ours, "input", fields())
    for key, x in expected.items():
        assert found[key].shape == tuple(x.shape)
        assert_close(found[key], x.numpy(), 1e-6, key)
    if theirs.dst_lat is not None and args.get("reshape_to_xy", True):
        assert np.array_equal(ours.effects.grid.latitude, theirs.dst_lat)
        assert np.array_equal(ours.effects.grid.longitude, theirs.dst_lon)
    flat = {T: fields()[T].reshape(2, 4, 1, OLD)}
    batch = {T: torch.tensor(flat[T])}
    expected = theirs({"input": {"S": batch}})["input"]["S"][T]
    assert_close(host_results(ours, "input", flat)[T], expected, 1e-6, "points")


def chain(path):
    args = {"weight_file": path, "variables": [T, SP]}
    roots = {"type": "sqrt_transform", "args": {"variables": [SP]}}
    return preblocks(
        regrid={"type": "regrid", "args": args}, roots=roots, concat=CONCAT
    )


def test_the_grid_and_the_units_after_it(tmp_path):
    pipeline = chain(write_weights(tmp_path / "weights.nc"))
    assert pipeline.grid.shape == (3, 2)
    assert np.array_equal(pipeline.grid.latitude, LATITUDE)
    units = channel_units(pipeline, [group(T, 4), group(SP, 1)])
    y = units.normalize(np.concatenate(list(fields().values()), axis=1))
    assert y.shape == (2, 5, 1, 3, 2)
    back = units.denormalize(y)
    assert_close(back[:, 4], y[:, 4] ** 2, 1e-6, "on the new grid")
    assert preblocks(concat=CONCAT).grid is None
    for name in ("latitude", "longitude"):
        curved = chain(write_weights(tmp_path / "curved.nc", curved=name))
        assert curved.grid.shape == (3, 2)
        assert curved.grid.latitude is None


def test_errors(tmp_path):
    pipeline = chain(write_weights(tmp_path / "weights.nc"))
    x = {"S": {T: np.zeros((1, 4, 1, 3, 2), np.float32)}}
    with pytest.raises(ValueError, match=re.escape(f"{T} has a grid of 3 x 2, but")):
        pipeline.run(Phase.BEFORE_STEP, {"input": x})
    xr.Dataset({"row": ("n_s", [1])}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match="it lacks S, col, dst_grid_dims"):
        chain(str(tmp_path / "other.nc"))
