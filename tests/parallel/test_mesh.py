"""Meshes: degrees and axes of config sections, devices, ranks, and what they note."""

import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.config import parse
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.registry import build
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.mesh import credit
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    ORDER,
    TP,
    MeshAxes,
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
from credit_jax.parallel.mesh.model_fit import (
    model_notes,
    validate_sharding_constraints,
)
from credit_jax.parallel.params.fsdp import ShardingRules, gather
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import ParamSpec
from tests.models.cases import BASE
from tests.models.cases import section as resized

MODEL = resized(
    BASE,
    grid=(32, 32),
    depth=[1, 1, 1, 1],
    cross_embed_kernel_sizes=[[2, 4]] * 4,
    padding_conf=None,
)
# Two replicas of the parameters, each split over the other data-parallel axis.
HSDP = {"data": "fsdp2", "dp_replicate": 2, "tensor": 2, "domain": 1}


def section(data: str = "fsdp2", tensor: int = 1, domain: int = 1) -> dict[str, Any]:
    """Returns CREDIT's `parallelism` section."""
    return {"data": data, "tensor": tensor, "domain": domain}


class FakeDevice:
    """A stand-in for a device of another process."""

    def __init__(self, number: int, process_index: int) -> None:
        self.id = number
        self.process_index = process_index


def degrees(dims: ParallelDims) -> dict[str, int]:
    return {axis: getattr(dims, axis) for axis in ORDER if getattr(dims, axis) > 1}


# CREDIT's functions.


def test_parse_fills_in_the_defaults_and_leaves_the_config_alone():
    conf = {"trainer": {"parallelism": {"tensor": "2"}}}
    assert credit.parse_parallelism_conf(conf) == section("none", tensor=2)
    assert conf == {"trainer": {"parallelism": {"tensor": "2"}}}


@pytest.mark.parametrize(
    ("conf", "shape", "groups"),
    [
        (section(), {DP_SHARD: 8}, {"dp": 8}),
        (section("ddp"), {DP_REPLICATE: 8}, {"dp": 8}),
        (section(tensor=2), {DP_SHARD: 4, TP: 2}, {"dp": 4, "tp": 2}),
        (section(domain=4), {DP_SHARD: 2, DOMAIN: 4}, {"dp": 2, "domain": 4}),
        (
            section(tensor=2, domain=2),
            {DP_SHARD: 2, TP: 2, DOMAIN: 2},
            {"dp": 2, "tp": 2, "domain": 2},
        ),
        (section("ddp", domain=8), {DOMAIN: 8}, {"domain": 8}),
        (section("none", tensor=2), {TP: 2}, {"tp": 2}),
        (section("none"), {DP_SHARD: 1}, {}),
        (
            ParallelismConfig(data="ddp", tensor=2),
            {DP_REPLICATE: 4, TP: 2},
            {"dp": 4, "tp": 2},
        ),
    ],
)
def test_only_degrees_above_one_are_built_outermost_first(conf, shape, groups):
    mesh, submeshes = credit.build_device_mesh(conf)
    assert tuple(mesh.shape.items()) == tuple(shape.items()), mesh
    assert set(mesh.axis_types) == {AxisType.Auto}, mesh
    assert {name: sub.size for name, sub in submeshes.items()} == groups, submeshes
    if isinstance(conf, dict) and conf["data"] != "none":
        tp, domain = conf["tensor"], conf["domain"]
        assert credit.dp_world_size(conf, 8) == 8 // (tp * domain)
        grid = mesh.devices.reshape(-1, tp, domain)
        for g, device in enumerate(jax.devices()):
            coords = g // (tp * domain), (g // domain) % tp, g % domain
            assert grid[coords] is device, f"rank {g} is at another place"


def test_a_submesh_is_the_group_of_the_first_device_of_this_process():
    devices = jax.devices()
    _, groups = credit.build_device_mesh(section(tensor=2, domain=2))
    assert groups["domain"].devices.tolist() == [devices[0], devices[1]]
    assert groups["tp"].devices.tolist() == [devices[0], devices[2]]
    assert groups["dp"].devices.tolist() == [devices[0], devices[4]]
    mesh, groups = credit.build_device_mesh(section(), devices[:1])
    assert dict(mesh.shape) == {DP_SHARD: 1}
    assert groups == {}
    assert credit.data_parallel_coords(mesh) == (0, 1)


def test_the_sampler_contract_over_processes(monkeypatch):
    """On four processes of two devices, tp and domain peers load the same dp rank."""
    devices = [FakeDevice(g, g // 2) for g in range(8)]
    for conf, expected in [
        (section(), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (section(tensor=2), [(0,), (1,), (2,), (3,)]),
        (section(tensor=2, domain=2), [(0,), (0,), (1,), (1,)]),
        (section(domain=8), [(0,), (0,), (0,), (0,)]),
    ]:
        mesh, _ = credit.build_device_mesh(conf, devices)
        for process, ranks in enumerate(expected):
            monkeypatch.setattr(jax, "process_index", lambda process=process: process)
            assert credit.local_dp_ranks(mesh) == ranks, (conf, process)
            dp_size = 8 // (conf["tensor"] * conf["domain"])
            assert credit.data_parallel_coords(mesh) == (ranks[0], dp_size)
        assert credit.shares_samples(mesh) == (conf["tensor"] * conf["domain"] > 2)
    mesh = mesh_of_degrees({DOMAIN: 2, DP_REPLICATE: 2, DP_SHARD: 2}, devices)
    assert mesh.axis_names == (DP_REPLICATE, DP_SHARD, DOMAIN)
    assert credit.data_parallel_coords(mesh) == (3, 4), "both data axes make one rank"


def test_the_yaml_section_takes_the_further_keys():
    section = parse(ParallelismConfig, HSDP | {"dp_shard": 2}, "trainer.parallelism")
    mesh, groups = credit.build_device_mesh(section)
    assert dict(mesh.shape) == {DP_REPLICATE: 2, DP_SHARD: 2, TP: 2}
    assert {name: dict(sub.shape) for name, sub in groups.items()} == {
        "dp": {DP_REPLICATE: 2, DP_SHARD: 2},
        "tp": {TP: 2},
    }
    conf = credit.parse_parallelism_conf({"trainer": {"parallelism": HSDP}})
    assert conf == HSDP
    assert credit.dp_world_size(HSDP, 8) == required_devices(HSDP) == 4
    # Rank 5: data-parallel rank 2, the second of its tp peers.
    assert mesh.devices[1, 0, 1] is jax.devices()[5]
    cp = credit.parse_parallelism_conf({"trainer": {"parallelism": {"cp": 2}}})
    assert cp == {"data": "none", "tensor": 1, "domain": 2}


# Devices.


def test_devices_that_are_there():
    assert required_devices(ParallelismConfig(tensor=2, domain=4)) == 8
    ensure_devices(1)
    ensure_devices(8)
    devices = jax.devices()
    # Forward passes of one replica take no more than they need.
    assert forward_devices(section("none", tensor=2)) == devices[:2]
    assert forward_devices(section("none", tensor=2), 4) == devices[:4]
    assert forward_devices(section(tensor=2)) == devices
    assert training_devices(section("none", tensor=2)) == devices
    assert training_devices(section(tensor=2), 6) == devices[:6]


def run(code: str, *arguments: str) -> str:
    """Returns what a process prints whose JAX has no devices yet."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"JAX_PLATFORMS": "cpu", "PATH": ""},
    ).stdout


def test_devices_are_simulated_before_jax_is_used():
    text = run(
        "from credit_jax.parallel.mesh.devices import ensure_devices; import jax;"
        "ensure_devices({'data': 'none', 'tensor': 2, 'domain': 3});"
        "print(len(jax.devices()))"
    )
    note = "No accelerator found: running on 6 simulated CPU devices."
    assert text.splitlines() == [note, "6"]


@pytest.mark.slow
def test_sums_do_not_depend_on_the_number_of_processes():
    """XLA splits this sum by threads, of which more devices have more by default."""
    code = (
        "import sys, jax.numpy as jnp; from credit_jax.parallel.mesh import devices;"
        "assert devices.simulate(int(sys.argv[1]), 8);"
        "x = jnp.sin(jnp.arange(2.0**20)).reshape(4, 512, 512);"
        "print(float(x.sum()).hex())"
    )
    sums = {run(code, number) for number in ("8", "4", "2", "1")}
    assert len(sums) == 1, sums


def test_the_data_parallel_part_of_a_mesh():
    mesh = ParallelDims(dp_replicate=2, dp_shard=2, tp=2, world_size=8).build_mesh()
    assert has_dp_mesh(mesh)
    part = get_dp_mesh(mesh)
    assert dict(part.shape) == {DP_REPLICATE: 2, DP_SHARD: 2}
    assert part.devices.tolist() == mesh.devices[..., 0].tolist()
    for degree in (DP_SHARD, DP_REPLICATE):
        part = get_dp_mesh(mesh_of_degrees({degree: 4, DOMAIN: 2}, jax.devices()))
        assert dict(part.shape) == {degree: 4}
        assert part.devices.tolist() == jax.devices()[::2]
    assert dict(get_dp_mesh(ParallelDims().build_mesh()).shape) == {DP_SHARD: 1}
    assert not has_dp_mesh(ParallelDims(tp=8, world_size=8).build_mesh())


# ParallelDims.


@dataclass
class Block:
    """A section as an object, with settings of others."""

    dp_replicate: int = 2
    dp: int | None = None
    tp: int = 2
    seq: int = 3


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
        (
            {"dp_replicate": 2, "dp_shard": -1, "cp": 2},
            {DP_REPLICATE: 2, DP_SHARD: 2, DOMAIN: 2},
        ),
        ({"dp_shard": "2", "ep": 4.0}, {DP_SHARD: 2, EP: 4}),
        ({"data": "fsdp2", "tensor": 2, "domain": 2}, {DP_SHARD: 2, TP: 2, DOMAIN: 2}),
        ({"data": "ddp", "tensor": 2, "domain": 1}, {DP_REPLICATE: 4, TP: 2}),
        ({"data": "ddp", "dp_replicate": 4, "domain": 2}, {DP_REPLICATE: 4, DOMAIN: 2}),
        ({"data": "none", "tensor": 2, "domain": 2}, {TP: 2, DOMAIN: 2}),
        ({"data": "fsdp2", "dp_replicate": 4}, {DP_REPLICATE: 4, DP_SHARD: 2}),
        (Block(), {DP_REPLICATE: 2, DP_SHARD: 2, TP: 2}),
        (SimpleNamespace(dp=4, cp=2, name="any"), {DP_SHARD: 4, DOMAIN: 2}),
        (ParallelismConfig(data="ddp", cp=2), {DP_REPLICATE: 4, DOMAIN: 2}),
    ],
)
def test_a_section_becomes_degrees(section, expected):
    dims = ParallelDims.from_config(section, 8)
    assert degrees(dims) == expected, dims
    is_none = isinstance(section, dict) and section.get("data") == "none"
    used = 4 if is_none else 8
    assert dims.world_size == used, dims
    assert dims.dp_size * dims.non_dp_size == used, dims
    assert dims.cp == dims.domain, dims
    assert dims.etp == dims.tp, "etp is tp unless it is given"
    mesh = dims.build_mesh()
    assert tuple(mesh.shape.items()) == tuple(dims.axis_degrees.items())
    assert mesh.axis_names == tuple(axis for axis in ORDER if axis in expected)
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()[:used]


def test_the_constructor_fills_in_the_rest_and_nothing_else():
    dims = ParallelDims(dp_replicate=2, dp_shard=-1, cp=2, world_size=8)
    assert (dims.dp_shard, dims.domain, dims.cp, dims.etp) == (2, 2, 2, 1)
    assert ParallelDims() == ParallelDims(dp_shard=-1, world_size=1)
    assert hash(dims) == hash(replace(dims))
    with pytest.raises(AttributeError):
        dims.tp = 2  # type: ignore[misc]
    whole = ParallelDims(tp=2, domain=4, etp=2, ulysses_degree=1, world_size=8)
    assert dict(whole.build_mesh().shape) == {TP: 2, DOMAIN: 4}


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
    dims = ParallelDims(**given, world_size=8 if given else 1)
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
    names = ("tp", "dp", "fsdp", "hsdp", "cp", "domain", "ep", "pp")
    enabled = {name for name in names if getattr(dims, f"{name}_enabled")}
    assert enabled == {"tp", "dp", "fsdp", "hsdp"}
    assert dims.summary() == (
        "dp_replicate=2 dp_shard=2 ep=1 pp=1 tp=2 domain=1 etp=2 | dp=4 world=8"
    )
    assert not ParallelDims().fsdp_enabled
    assert not ParallelDims(dp_replicate=8, world_size=8).hsdp_enabled


def test_hsdp_copies_over_one_axis_and_splits_over_the_other(rng):
    """The shards of every parameter, and gradients equal to those of one device."""
    dims = ParallelDims(dp_replicate=2, dp_shard=-1, tp=2, world_size=8)
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
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    assert np.linalg.norm(grad - want) < 1e-5 * np.linalg.norm(want)


# Uneven splits of a model, and moved rows; the texts are in tests/messages.


class Grid(ModelConfig):
    type: str = "grid"
    image_height: int


def test_nothing_to_say_where_everything_divides():
    model_def = build(MODEL)
    assert validate_sharding_constraints(model_def.config, 32) == []
    assert validate_sharding_constraints(None, 32, [4, 4, 2, 2]) == []
    assert validate_sharding_constraints(None, 12, [(4, 7), (3, 5)]) == []
    assert model_notes(ModelConfig(type="no stages"), 8) == []
    assert validate_sharding_constraints(ModelConfig(type="no stages"), 8) == []
    assert validate_sharding_constraints(Grid(image_height=10), 5) == [], "5 + 5"
    dims = ParallelDims(tp=2, dp_shard=-1, world_size=8)
    assert dims.validate_against_model(model_def) == []
    assert dims.validate_against_model(model_def.config) == []


@pytest.mark.parametrize(
    ("local_h", "sizes", "levels"),
    [(10, [4], {0}), (12, [4, 4], {1}), (9, [3, 2, 2, 1], set()), (7, [2, 2], {0, 1})],
)
def test_windows_that_do_not_divide_the_rows(local_h, sizes, levels):
    notes = validate_sharding_constraints(None, local_h, sizes)
    assert {int(note.split("level ")[1][0]) for note in notes} == levels


def test_the_model_is_asked_for_its_windows():
    # 32 rows, strides of 2: stages of 16, 8, 4 and 2 rows, short windows of 2.
    config = build(MODEL).config
    notes = validate_sharding_constraints(config, 8)
    levels = [note.split(":")[0] for note in notes if note.startswith("level")]
    assert levels == ["level 2", "level 3"]
    assert set(model_notes(config, 4)) <= set(notes)
    assert validate_sharding_constraints(build(MODEL), 8) == notes
    quiet = build({**MODEL, "depth": [1, 1, 0, 0]}).config
    assert not [n for n in validate_sharding_constraints(quiet, 8) if "level" in n]
