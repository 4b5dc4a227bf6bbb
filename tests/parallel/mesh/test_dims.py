"""ParallelDims: inferred degrees, the error of every rule, meshes, groups, HSDP."""

from dataclasses import dataclass
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
from tests.parallel.mesh.cases import MODEL


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
    assert hash(dims) == hash(ParallelDims(**vars(dims)))
    assert ParallelDims(tp=4, world_size=4).etp == 4, "etp is tp unless it is given"
    with pytest.raises(AttributeError):
        dims.tp = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("further", "lost"),
    [
        ({"domain": 2, "ulysses_degree": 2}, "ulysses_degree is 2, which"),
        ({"tp": 2, "etp": 1}, "etp is 1, which"),
        (
            {"tp": 2, "domain": 4, "etp": 1, "ulysses_degree": 2},
            "ulysses_degree is 2 and etp is 1, which",
        ),
    ],
)
def test_a_mesh_would_lose_what_is_no_axis(further, lost):
    dims = ParallelDims(dp_shard=-1, **further, world_size=8)
    with pytest.raises(ValueError, match=f"^{lost} a Mesh cannot carry; pass the"):
        dims.build_mesh()
    whole = ParallelDims(tp=2, domain=4, etp=2, ulysses_degree=1, world_size=8)
    assert dict(whole.build_mesh().shape) == {TP: 2, DOMAIN: 4}


ONE = [
    ({"tp": 2, "domain": 3}, r"world_size=8 not divisible by tp\*domain=6 \(tp 2 x "),
    ({"tensor": 2, "cp": 3}, r"by tensor\*cp=6 \(tensor 2 x cp 3\); with 8 devices "),
    ({"tensor": 2, "domain": 3}, r"8 devices tensor\*domain can be 1, 2, 4, 8$"),
    ({"dp_replicate": 3}, r"by dp_replicate\*tp\*domain=3 \(dp_replicate 3 x tp 1"),
    ({"data": "none", "tensor": 3}, r"world_size=8 not divisible by tensor\*domain=3"),
    ({"tp": 16}, r"world_size=8 not divisible by tp\*domain=16"),
    (
        {"dp_shard": 3, "tp": 2},
        "dp_shard 3 x tp 2 = 6 devices, but world_size is 8; dp_shard would fit with "
        r"4, or -1 \(the rest\)",
    ),
    (
        {"dp": 2, "tensor": 3},
        "dp 2 x tensor 3 = 6 devices, but world_size is 8; the degrees beside dp, 3 "
        "together, must divide 8: 1, 2, 4, 8 would fit",
    ),
    ({"tp": 0}, "tp must be an integer >= 1, got 0"),
    ({"cp": "two"}, "cp must be an integer >= 1, got 'two'"),
    ({"domain": 1.5}, "domain must be an integer >= 1, got 1.5"),
    ({"dp_shard": 0}, r"dp_shard must be -1 \(the rest\) or an integer >= 1, got 0"),
    ({"dp_shard": -2}, r"dp_shard must be -1 .* got -2"),
    ({"tp": 2, "tensor": 4}, "tp is 2 and tensor is 4, but they name one degree"),
    ({"domain": 2, "cp": 4}, "domain is 2 and cp is 4, but they name one degree"),
    ({"dp": 2, "dp_shard": 8}, "dp_shard is 8 and dp is 2, but they name one degree"),
    ({"tensr": 2}, "tensr: unknown key; the nearest known key is 'tensor'"),
    ({"data": "fsdp"}, "data must be 'fsdp2', 'ddp', or 'none', got 'fsdp'"),
    (
        {"data": "ddp", "dp_shard": 8},
        "data is 'ddp', which keeps every parameter whole, but dp_shard is 8; use",
    ),
    (
        {"data": "none", "dp_replicate": 2, "dp_shard": 4},
        "one replica, but dp_replicate is 2 and dp_shard is 4; use data: fsdp2",
    ),
    ({"tp": 4, "etp": 2}, "etp is 2; expected tp or 1, that is 4 or 1"),
    ({"etp": 2}, "etp is 2; expected tp or 1, that is 1"),
    (
        {"domain": 4, "ulysses_degree": 8},
        "ulysses_degree is 8, which is more than domain 4; would fit: 1, 2, 4",
    ),
    (
        {"cp": 8, "ulysses_degree": 3},
        "ulysses_degree is 3, which does not divide cp 8; would fit: 1, 2, 4, 8",
    ),
]


@pytest.mark.parametrize(("section", "message"), ONE)
def test_a_mistake_is_told_with_the_arithmetic(section, message):
    with pytest.raises(ValueError, match=message):
        ParallelDims.from_config(section, 8)


def test_the_constructor_says_the_same():
    message = "dp_shard 1 x tp 4 = 4 devices, but world_size is 8; dp_shard would fit"
    with pytest.raises(ValueError, match=message):
        ParallelDims(tp=4, world_size=8)
    with pytest.raises(ValueError, match="domain is 2 and cp is 4"):
        ParallelDims(domain=2, cp=4, world_size=4)
    with pytest.raises(ValueError, match="world_size must be an integer >= 1, got 0"):
        ParallelDims(world_size=0)


@pytest.mark.parametrize("given", [{}, {"dp_shard": 2}, {"dp_shard": -1}])
def test_pipeline_stages_are_refused_first_and_with_the_reason(given):
    why = r"pp is 4, but no model .* idle 3 / \(m \+ 3\) of .* 75% .*fsdp"
    with pytest.raises(ValueError, match=r"parallelism: (\d problems?\s+)?" + why):
        ParallelDims(pp=4, world_size=8, **given)
    with pytest.raises(ValueError, match=why):
        ParallelDims.from_config({"pp": 4}, 8)


def test_one_error_lists_all_that_is_wrong(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: pytest.fail("a device is asked for"))
    section = {"tensor": 3, "domain": 2, "etp": 2, "ulysses_degree": 4, "pp": 5, "x": 1}
    with pytest.raises(ValueError, match="parallelism: ") as caught:
        ParallelDims.from_config(section, 8, model=build(MODEL))
    expected = [
        "parallelism: 9 problems",
        "x: unknown key",
        "pp is 5, but no model has pipeline stages: with m micro-batches they would ",
        "etp is 2; expected tensor or 1, that is 3 or 1",
        "ulysses_degree is 4, which is more than domain 2; would fit: 1, 2",
        "world_size=8 not divisible by pp*tensor*domain=30 (pp 5 x tensor 3 x domain 2",
        "stage 0 has 2 heads, which tensor = 3 of the parallelism does not",
        "stage 1 has 4 heads",
        "stage 2 has 8 heads",
        "stage 3 has 16 heads",
    ]
    lines = str(caught.value).split("\n")
    assert len(lines) == len(expected), str(caught.value)
    for line, start in zip(lines, expected, strict=True):
        assert line.strip().startswith(start), line


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
