"""ParallelDims: inferred degrees, the error of every rule, meshes, groups, HSDP."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.models.registry import build
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    ORDER,
    TP,
    MeshAxes,
)
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import ShardingRules, gather
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import ParamSpec
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.parallel.mesh.cases import MODEL

CASES = Cases("dims")


def degrees(dims: ParallelDims) -> dict[str, int]:
    return {axis: getattr(dims, axis) for axis in ORDER if getattr(dims, axis) > 1}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, {DP_SHARD: 8}),
        ({"tp": 4}, {DP_SHARD: 2, TP: 4}),
        ({"tp": 2, "domain": 4}, {TP: 2, DOMAIN: 4}),
        ({"cp": 4}, {DP_SHARD: 2, DOMAIN: 4}),
        ({"dp": 4, "tp": 2}, {DP_SHARD: 4, TP: 2}),
        ({"dp_replicate": 2}, {DP_REPLICATE: 2, DP_SHARD: 4}),
        ({"dp_replicate": 8}, {DP_REPLICATE: 8}),
        ({"dp_replicate": 2, "dp_shard": -1, "cp": 2}, "2 x 2 x 2"),
        ({"dp_shard": "2", "ep": 4.0}, {DP_SHARD: 2, EP: 4}),
        ({"data": "fsdp2", "tensor": 2, "domain": 2}, {DP_SHARD: 2, TP: 2, DOMAIN: 2}),
        ({"data": "ddp", "tensor": 2, "domain": 1}, {DP_REPLICATE: 4, TP: 2}),
        ({"data": "ddp", "dp_replicate": 4, "domain": 2}, {DP_REPLICATE: 4, DOMAIN: 2}),
        ({"data": "none", "tensor": 2, "domain": 2}, {TP: 2, DOMAIN: 2}),
        ({"data": "fsdp2", "dp_replicate": 4}, {DP_REPLICATE: 4, DP_SHARD: 2}),
    ],
)
def test_a_section_becomes_degrees(section, expected):
    if expected == "2 x 2 x 2":
        expected = {DP_REPLICATE: 2, DP_SHARD: 2, DOMAIN: 2}
    dims = ParallelDims.from_config(section, 8)
    assert degrees(dims) == expected, dims
    used = 4 if section.get("data") == "none" else 8
    assert dims.world_size == used, dims
    assert dims.dp_size * dims.non_dp_size == used, dims
    assert dims.cp == dims.domain, dims
    assert dims.etp == dims.tp, "etp is tp unless it is given"
    mesh = dims.build_mesh()
    assert tuple(mesh.shape.items()) == tuple(dims.axis_degrees.items())
    assert mesh.axis_names == tuple(axis for axis in ORDER if axis in expected)
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()[:used]


def test_a_block_may_be_an_object():
    @dataclass
    class Parallel:
        dp_replicate: int = 2
        dp: int | None = None
        tp: int = 2
        seq: int = 3

    assert degrees(ParallelDims.from_config(Parallel(), 8)) == {
        DP_REPLICATE: 2,
        DP_SHARD: 2,
        TP: 2,
    }
    section = SimpleNamespace(dp=2, cp=2, name="any")
    dims = ParallelDims.from_config(section, 4)
    assert degrees(dims) == {DP_SHARD: 2, DOMAIN: 2}
    section = ParallelismConfig(data="ddp", cp=2)
    dims = ParallelDims.from_config(section, 4)
    assert degrees(dims) == {DP_REPLICATE: 2, DOMAIN: 2}


def test_the_constructor_fills_in_the_rest_and_nothing_else():
    dims = ParallelDims(dp_replicate=2, dp_shard=-1, cp=2, world_size=8)
    assert (dims.dp_shard, dims.domain, dims.cp, dims.etp) == (2, 2, 2, 1)
    assert ParallelDims() == ParallelDims(dp_shard=-1, world_size=1)
    assert hash(dims) == hash(replace(dims))
    assert ParallelDims(tp=4, world_size=4).etp == 4, "etp is tp unless it is given"
    with pytest.raises(AttributeError):
        dims.tp = 2  # type: ignore[misc]


def test_degrees_that_are_no_axes_are_left_out_of_a_mesh():
    whole = ParallelDims(tp=2, domain=4, etp=2, ulysses_degree=1, world_size=8)
    assert dict(whole.build_mesh().shape) == {TP: 2, DOMAIN: 4}


CASES.rows(
    lambda section: ParallelDims.from_config(section, 8),
    ({"tp": 2, "domain": 3},),
    ({"tensor": 2, "cp": 3},),
    ({"tensor": 2, "domain": 3},),
    ({"dp_replicate": 3},),
    ({"data": "none", "tensor": 3},),
    ({"tp": 16},),
    ({"dp_shard": 3, "tp": 2},),
    ({"dp": 2, "tensor": 3},),
    ({"tp": 0},),
    ({"cp": "two"},),
    ({"domain": 1.5},),
    ({"dp_shard": 0},),
    ({"dp_shard": -2},),
    ({"tp": 2, "tensor": 4},),
    ({"domain": 2, "cp": 4},),
    ({"dp": 2, "dp_shard": 8},),
    ({"tensr": 2},),
    ({"data": "fsdp"},),
    ({"data": "ddp", "dp_shard": 8},),
    ({"data": "none", "dp_replicate": 2, "dp_shard": 4},),
    ({"tp": 4, "etp": 2},),
    ({"etp": 2},),
    ({"domain": 4, "ulysses_degree": 8},),
    ({"cp": 8, "ulysses_degree": 3},),
    ({"pp": 4},),
    ({"tensor": 3, "domain": 2, "etp": 2, "ulysses_degree": 4, "pp": 5, "x": 1},),
)
CASES.rows(
    lambda **degrees: ParallelDims(**degrees),
    {"tp": 4, "world_size": 8},
    {"domain": 2, "cp": 4, "world_size": 4},
    {"world_size": 0},
    {"pp": 4, "world_size": 8},
    {"pp": 4, "world_size": 8, "dp_shard": 2},
    name="ParallelDims",
)
CASES.rows(
    lambda **degrees: ParallelDims(**degrees, world_size=8).build_mesh(),
    {"dp_shard": -1, "domain": 2, "ulysses_degree": 2},
    {"dp_shard": -1, "tp": 2, "etp": 1},
    {"dp_shard": -1, "tp": 2, "domain": 4, "etp": 1, "ulysses_degree": 2},
    name="mesh",
)


def test_no_device_is_asked_for_before_an_error(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: pytest.fail("a device is asked for"))
    with pytest.raises(ValueError, match="stage 3 has 16 heads"):
        ParallelDims.from_config({"tensor": 3, "pp": 5}, 8, model=build(MODEL))


@pytest.mark.parametrize(
    ("given", "fsdp", "dp", "loss"),
    [
        ({}, (DP_SHARD,), (DP_SHARD,), (DP_SHARD,)),
        ({"dp_shard": 8}, (DP_SHARD,), (DP_SHARD,), (DP_SHARD,)),
        ({"dp_replicate": 8}, (), (DP_REPLICATE,), (DP_REPLICATE,)),
        (
            {"dp_replicate": 2, "dp_shard": 2, "cp": 2},
            (DP_SHARD,),
            (DP_REPLICATE, DP_SHARD),
            (DP_REPLICATE, DP_SHARD, DOMAIN),
        ),
        ({"tp": 4, "domain": 2}, (), (), (DOMAIN,)),
        ({"tp": 8}, (), (), ()),
    ],
)
def test_the_named_groups_are_axes_of_the_mesh(given, fsdp, dp, loss):
    world = 8 if given else 1
    dims = ParallelDims(**given, world_size=world)
    assert (dims.fsdp, dims.dp, dims.loss) == (fsdp, dp, loss)
    mesh = dims.build_mesh()
    assert dims.mesh_axes == MeshAxes.from_mesh(mesh)
    assert dims.mesh_axes.data == dp
    total = jax.shard_map(
        lambda x: psum(x.sum(), dims.loss),
        mesh=mesh,
        in_specs=P(loss or None),
        out_specs=P(),
    )
    assert float(total(jnp.arange(16.0))) == 120.0


def test_properties_and_summary():
    dims = ParallelDims(dp_replicate=2, dp_shard=2, tp=2, etp=2, world_size=8)
    assert (dims.dp_size, dims.non_dp_size) == (4, 2)
    assert dims.tp_enabled
    assert dims.dp_enabled
    assert dims.fsdp_enabled
    assert dims.hsdp_enabled
    for name in ("cp", "domain", "ep", "pp"):
        assert not getattr(dims, f"{name}_enabled"), name
    assert dims.summary() == (
        "dp_replicate=2 dp_shard=2 ep=1 pp=1 tp=2 domain=1 etp=2 | dp=4 world=8"
    )
    assert not ParallelDims().fsdp_enabled
    assert not ParallelDims(dp_replicate=8, world_size=8).hsdp_enabled


def test_the_mesh_takes_as_many_devices_as_the_world_has():
    dims = ParallelDims(tp=2, world_size=2)
    assert dims.build_mesh().size == 2
    with pytest.raises(ValueError, match="tp 2 = 2 devices, but 8 are given"):
        dims.build_mesh(jax.devices())
    with pytest.raises(ValueError, match="dp_shard 16 = 16 devices, but 8 are given"):
        ParallelDims(dp_shard=-1, world_size=16).build_mesh()


@pytest.mark.parametrize("tp", [1, 2])
def test_hsdp_copies_over_one_axis_and_splits_over_the_other(tp, rng):
    """The shards of every parameter, and gradients equal to those of one device."""
    dims = ParallelDims(dp_replicate=2, dp_shard=-1, tp=tp, world_size=8)
    mesh, rules = dims.build_mesh(), ShardingRules()
    param_spec = ParamSpec((64, 32), ("embed", None))
    spec = rules.spec(param_spec, dims.mesh_axes)
    assert spec == P(DP_SHARD, None)
    weight = rng.standard_normal((64, 32), np.float32)
    x = rng.standard_normal((16, 64), np.float32)
    stored = jax.device_put(weight, NamedSharding(mesh, spec))
    rows = {s.device: s.index[0].indices(64)[:2] for s in stored.addressable_shards}
    block = 64 // dims.dp_shard
    for (copy, shard, *_), device in np.ndenumerate(mesh.devices):
        expected = (shard * block, (shard + 1) * block)
        assert rows[device] == expected, f"copy {copy}, shard {shard}: {rows[device]}"

    def local_loss(weight, x):
        whole = gather(weight, param_spec, rules, dims.mesh_axes, Precision())
        return psum((jnp.sin(x @ whole) ** 2).sum(), dims.dp) / 16

    step = jax.shard_map(
        jax.value_and_grad(local_loss),
        mesh=mesh,
        in_specs=(spec, P(dims.dp)),
        out_specs=(P(), spec),
        check_vma=True,
    )
    loss, grad = jax.jit(step)(stored, x)

    def whole_loss(weight):
        return (jnp.sin(x @ weight) ** 2).sum() / 16

    want_loss, want = jax.jit(jax.value_and_grad(whole_loss))(weight)
    assert grad.sharding.is_equivalent_to(stored.sharding, 2), grad.sharding
    error = np.linalg.norm(grad - want) / np.linalg.norm(want)
    print(f"tp {tp}: loss {float(loss):.6f}, gradient error {error:.1e}")
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    assert error < 1e-5, error
