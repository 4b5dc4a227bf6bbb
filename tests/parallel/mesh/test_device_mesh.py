"""Meshes of named axes, and the data-parallel part of one."""

import jax
import pytest

from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    TP,
    get_dp_mesh,
    has_dp_mesh,
    mesh_of_degrees,
)
from credit_jax.parallel.mesh.dims import ParallelDims


def test_degrees_must_match_the_devices():
    with pytest.raises(ValueError, match=r"dp_shard 3 x tp 2 = 6 devices, but 8 are"):
        mesh_of_degrees({DP_SHARD: 3, TP: 2}, jax.devices())
    with pytest.raises(ValueError, match=r"unknown mesh axes \['cp'\]"):
        mesh_of_degrees({"cp": 8}, jax.devices())


def test_the_data_parallel_part_of_a_mesh():
    dims = ParallelDims(dp_replicate=2, dp_shard=2, tp=2, world_size=8)
    mesh = dims.build_mesh()
    assert has_dp_mesh(mesh)
    part = get_dp_mesh(mesh)
    assert dict(part.shape) == {DP_REPLICATE: 2, DP_SHARD: 2}
    assert part.devices.tolist() == mesh.devices[..., 0].tolist()
    for degree in (DP_SHARD, DP_REPLICATE):
        mesh = mesh_of_degrees({degree: 4, DOMAIN: 2}, jax.devices())
        part = get_dp_mesh(mesh)
        assert dict(part.shape) == {degree: 4}
        assert part.devices.tolist() == jax.devices()[::2]
    assert dict(get_dp_mesh(ParallelDims().build_mesh()).shape) == {DP_SHARD: 1}


def test_a_mesh_without_data_parallelism():
    mesh = ParallelDims(tp=8, world_size=8).build_mesh()
    assert not has_dp_mesh(mesh)
    message = (
        r"the mesh \{'tp': 8\} has no data-parallel axis; expected dp_replicate or "
        r"dp_shard; ask has_dp_mesh\(mesh\) first"
    )
    with pytest.raises(ValueError, match=message):
        get_dp_mesh(mesh)
