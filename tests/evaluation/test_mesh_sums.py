"""Sums on device meshes equal those on one device, with even and uneven rows."""

import jax
import numpy as np
import pytest

from credit_jax.evaluation.mesh_sums import MeshSums, ScoreGrid
from credit_jax.evaluation.regions import REGIONS
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.evaluation.fields import random_fields, sums_of

BOUND = 1e-6
NUM_LON = 16


def grid_of(rows):
    latitude = np.linspace(80.0, -80.0, rows)
    return ScoreGrid(latitude, np.arange(NUM_LON) * 22.5, REGIONS[:6], REGIONS[:2])


def mesh_of(data, tensor, domain):
    size = data * tensor * domain
    dims = ParallelDims(dp_replicate=data, tp=tensor, domain=domain, world_size=size)
    return dims.build_mesh(jax.devices()[:size])


@pytest.mark.slow(but=["(4, 1, 2)-7-4"])
@pytest.mark.parametrize(
    ("degrees", "rows", "num_members"),
    [
        ((1, 1, 1), 8, 4),
        ((1, 1, 3), 8, 4),
        ((2, 1, 2), 8, 4),
        ((4, 1, 2), 7, 4),  # members of a start date on two ranks
        ((2, 2, 2), 8, 1),
        ((1, 1, 8), 9, 2),  # some devices have padding alone
    ],
    ids=str,
)
def test_sums_on_a_mesh(degrees, rows, num_members):
    grid = grid_of(rows)
    forecast, references = random_fields(grid.latitude, NUM_LON, num_members)
    forecast[0, 0, 0, 2, 3] = np.nan
    one = sums_of(forecast, references, grid)
    size = forecast.shape[0] * num_members
    measure = MeshSums(mesh_of(*degrees), grid, size, num_members)
    assert measure.gathers == (size // degrees[0] % num_members != 0)
    members = forecast.reshape(size, *forecast.shape[2:])
    many = measure.to_host(
        measure(measure.place_forecast(members), measure.place(references))
    )
    assert many.keys() == one.keys()
    worst = max(
        (difference(many[name], expected, size_of(name, one)), name)
        for name, expected in one.items()
    )
    print(f"{degrees}, {rows} rows, {num_members} members: {worst[0]:.1e} {worst[1]}")
    assert worst[0] < BOUND


def size_of(name, sums):
    """Returns sums in the same unit without cancellation, as a measure of size."""
    other = {"plain": "absolute", "product": "anomaly"}
    system, quantity = name.split("/")
    return sums[f"{system}/{other.get(quantity, quantity)}"]


def difference(found, expected, size):
    scale = np.abs(size).max(axis=(0, *range(2, size.ndim)), keepdims=True)
    return np.max(np.abs(found - expected) / scale)


def test_members_that_do_not_run_side_by_side():
    with pytest.raises(ValueError, match=r"scores of 4 members .* multiple of 4"):
        MeshSums(mesh_of(2, 1, 1), grid_of(8), 6, 4)
