"""Devices of a mesh."""

import subprocess
import sys

import jax
import pytest

from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    TP,
    get_dp_mesh,
    has_dp_mesh,
    mesh_of_degrees,
)
from credit_jax.parallel.mesh.devices import (
    ensure_devices,
    forward_devices,
    required_devices,
    training_devices,
)
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.parallel.mesh.cases import HSDP, section


def test_the_fewest_devices_of_a_section():
    assert required_devices(ParallelismConfig(tensor=2, domain=4)) == 8
    assert required_devices(HSDP) == 4


def test_forward_passes_of_one_replica_take_no_more_than_they_need():
    assert forward_devices(section("none", tensor=2)) == jax.devices()[:2]
    assert forward_devices(section("none", tensor=2), 4) == jax.devices()[:4]
    assert forward_devices(section(tensor=2)) == jax.devices()
    assert training_devices(section("none", tensor=2)) == jax.devices()
    assert training_devices(section(tensor=2), 6) == jax.devices()[:6]


def test_too_few_devices_for_all_degrees():
    message = (
        "dp_replicate 4 x dp_shard 2 x tensor 2 x domain 1 = 16 devices are needed"
    )
    with pytest.raises(ValueError, match=message):
        ensure_devices(HSDP | {"dp_replicate": 4, "dp_shard": 2})


def test_too_few_devices_once_jax_is_in_use():
    ensure_devices(1)
    ensure_devices(8)
    message = "tensor 4 x domain 4 = 16 devices are needed, but JAX is already in use"
    with pytest.raises(ValueError, match=message):
        ensure_devices(section(tensor=4, domain=4))
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        ensure_devices(0)


def test_devices_are_simulated_before_jax_is_used():
    code = (
        "from credit_jax.parallel.mesh.devices import ensure_devices; import jax;"
        "ensure_devices({'data': 'none', 'tensor': 2, 'domain': 3});"
        "print(len(jax.devices()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"JAX_PLATFORMS": "cpu", "PATH": ""},
    )
    assert result.stdout.splitlines() == [
        "No accelerator found: running on 6 simulated CPU devices.",
        "6",
    ], result.stdout


@pytest.mark.slow
def test_sums_do_not_depend_on_the_number_of_processes():
    """XLA splits this sum by threads, of which more devices have more by default."""
    code = (
        "import sys, jax.numpy as jnp; from credit_jax.parallel.mesh import devices;"
        "assert devices.simulate(int(sys.argv[1]), 8);"
        "x = jnp.sin(jnp.arange(2.0**20)).reshape(4, 512, 512);"
        "print(float(x.sum()).hex())"
    )
    sums = {
        subprocess.run(
            [sys.executable, "-c", code, own],
            capture_output=True,
            text=True,
            check=True,
            env={"JAX_PLATFORMS": "cpu", "PATH": ""},
        ).stdout
        for own in ("8", "4", "2", "1")
    }
    assert len(sums) == 1, sums


def test_an_accelerator_machine_must_have_its_devices(monkeypatch):
    class Gpu:
        platform = "gpu"

    monkeypatch.setattr(jax, "devices", lambda: [Gpu()] * 6)
    message = (
        r"tensor 2 x domain 4 = 8 devices are needed, but this machine has 6 gpu "
        r"devices; tensor\*domain can be 1, 2, 3, 6 here"
    )
    with pytest.raises(ValueError, match=message):
        ensure_devices(section(tensor=2, domain=4))


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
