"""Placing arrays on the mesh and fetching them, outside and inside of `shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.parallel import placement
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_SHARD,
    MeshAxes,
    mesh_of_degrees,
)
from tests.support import assert_close, make_mesh
from tests.support.gradients import cotangent, draw

ROWS = pytest.mark.parametrize("rows", [8, 13, 3])
DIMS = pytest.mark.parametrize("dim", [-2, -1, 1])


def array(rows, dim, num_dims=5):
    shape = [2] * num_dims
    shape[dim] = rows
    return draw(shape)


@ROWS
@DIMS
@pytest.mark.parametrize("on_device", [False, True])
def test_there_and_back(rows, dim, on_device):
    mesh, x = make_mesh(domain=4), array(rows, dim)
    split = placement.shard_tensor(jnp.asarray(x) if on_device else x, mesh, dim=dim)
    length = -(-rows // 4)
    assert {shard.data.shape[dim] for shard in split.addressable_shards} == {length}
    padding = np.take(x, [rows - 1] * (4 * length - rows), dim)
    padded = np.concatenate([x, padding], dim)
    assert np.array_equal(split, padded), "padding is the last row"
    back = placement.gather_tensor(split, mesh, dim=dim, size=rows)
    assert isinstance(back, jax.Array)
    assert back.sharding.is_fully_replicated
    assert np.array_equal(back, x)


def test_without_a_domain_axis_nothing_happens():
    mesh, x = make_mesh(dp=2), array(5, -2)
    split = placement.shard_tensor(x, mesh)
    assert np.array_equal(split, x)
    assert np.array_equal(placement.gather_tensor(split, mesh), x)
    assert np.array_equal(placement.shard_tensor(jnp.asarray(x), MeshAxes()), x)
    assert np.array_equal(placement.gather_tensor(jnp.asarray(x), MeshAxes()), x)


def test_gathering_leaves_the_samples_split():
    mesh = make_mesh(dp=2, domain=3)
    x = array(7, -2)
    placed = placement.place_batch({"x": x}, mesh)["x"]
    whole = placement.gather_tensor(placed, mesh, size=7)
    assert np.array_equal(whole, x)
    assert {shard.data.shape[0] for shard in whole.addressable_shards} == {1}


@ROWS
@DIMS
def test_inside_of_shard_map(rows, dim):
    """A round trip with a nonlinear function in between: values and gradient."""
    mesh, x = make_mesh(domain=4), array(rows, dim)
    axes = MeshAxes.from_mesh(mesh)
    weight = cotangent(x.shape)

    def there_and_back(x):
        local = placement.shard_tensor(x, axes, dim=dim)
        assert local.shape[dim] == -(-rows // 4)
        return placement.gather_tensor(jnp.sin(local), axes, dim=dim, size=rows), local

    @jax.jit
    def run(x):
        blocks = P(*[None] * (dim % 5), DOMAIN)
        sharded = jax.shard_map(
            there_and_back, mesh=mesh, in_specs=P(), out_specs=(P(), blocks)
        )
        out, pullback, blocks = jax.vjp(sharded, x, has_aux=True)
        return out, pullback(jnp.asarray(weight))[0], blocks

    value, gradient, blocks = run(x)
    outside = placement.shard_tensor(x, mesh, dim=dim)
    assert np.array_equal(blocks, outside), "as outside, padding included"
    assert_close(value, np.sin(x), 1e-6, "value")
    assert_close(gradient, np.cos(x) * weight, 1e-5, "gradient")


def test_a_batch_of_anything():
    mesh = make_mesh(dp=2, domain=3)
    batch = {
        "x": draw((4, 2, 1, 7, 5)),
        "surface": draw((4, 2, 7, 5)),
        "times": np.arange(4),
        "mean": draw((7, 5)),
        "name": "era5",
        "stop": True,
    }
    placed = placement.shard_batch(batch, mesh)
    assert list(placed) == list(batch)
    for name in ("times", "mean", "name", "stop"):
        assert placed[name] is batch[name], f"{name} has changed"
    for name in ("x", "surface"):
        shape = placed[name].sharding.shard_shape(placed[name].shape)
        assert shape[0] == 2, "samples over dp"
        assert shape[-2] == 3, "rows over domain"
        whole = placement.gather_tensor(placed[name], mesh, size=7)
        assert np.array_equal(whole, batch[name])
    assert np.array_equal(
        placed["x"], placement.place_batch({"x": batch["x"]}, mesh)["x"]
    )


def test_a_batch_split_along_other_dims():
    mesh = make_mesh(domain=2)
    batch = {"x": draw((2, 3, 1, 7, 5)), "y": draw((2, 3, 7, 5))}
    placed = placement.shard_batch(batch, mesh, spatial_dims_5d=-1, spatial_dims_4d=2)
    assert placed["x"].shape == (2, 3, 1, 7, 6)
    assert placed["y"].shape == (2, 3, 8, 5)


def test_a_batch_of_torch(torch):
    batch = {"x": torch.from_numpy(draw((2, 3, 1, 7, 5))), "index": torch.arange(2)}
    placed = placement.shard_batch(batch, make_mesh(domain=2))
    assert np.array_equal(placed["x"][..., :7, :], batch["x"].numpy())
    assert placed["index"] is batch["index"]


@pytest.mark.parametrize(
    ("degrees", "size", "expected"),
    [
        ({DP_SHARD: 2, DOMAIN: 4}, 13, [(0, 8), (8, 5), (0, 8), (8, 5)]),
        # Blocks of 2, 2, 2, 2, 1, 0, 0, 0 rows: padding repeats the last row.
        ({DOMAIN: 8}, 9, [(0, 4), (4, 4), (8, 1), (8, 1)]),
    ],
)
def test_a_process_has_the_rows_of_its_devices(degrees, size, expected):
    class Device:
        def __init__(self, number):
            self.id, self.process_index = number, number // 2

    mesh = mesh_of_degrees(degrees, [Device(g) for g in range(8)])
    for process, (first, count) in enumerate(expected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "process_index", lambda process=process: process)
            assert placement.rows_of(mesh, size) == placement.LocalRows(
                first, size, count
            ), process


@pytest.mark.parametrize("num_domain", [2, 3, 4, 8])
def test_blocks_of_some_rows_are_those_of_all(num_domain):
    x = draw((1, 2, 1, 9, 3))
    length = -(-9 // num_domain)
    padded = placement.pad_rows(x, num_domain)
    assert (padded is x) == (num_domain == 3)
    assert isinstance(placement.pad_rows(jnp.asarray(x), num_domain), jax.Array)
    for shard in range(num_domain):
        begin, end = shard * length, (shard + 1) * length
        first = min(begin, 8)
        rows = placement.LocalRows(first, 9, min(end, 9) - first)
        part = x[..., first : min(end, 9), :]
        block = rows.take(part, begin, end, 3)
        assert np.array_equal(block, padded[..., begin:end, :]), shard


def test_some_rows_are_placed_where_all_are():
    mesh, x = make_mesh(dp=2, domain=2), draw((2, 3, 1, 7, 4))
    whole = placement.place_samples(x, mesh)
    part = placement.place_samples(x, mesh, rows=placement.LocalRows(0, 7, 7))
    assert part.sharding == whole.sharding
    assert np.array_equal(part, whole)
