"""Collectives of compiled programs, and times and memory of steps."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale import __main__ as times
from benchmarks.scale import memory
from benchmarks.scale.comm_volume import (
    EXCHANGE,
    FSDP,
    SUMS,
    TENSOR,
    least_volume,
    main,
    purpose,
)
from benchmarks.scale.hlo import Collective, collectives
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.rows.exchange import HALO
from tests.support import make_mesh


def _compile(body, mesh, spec, *, out=None):
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out or spec)
    return jax.jit(mapped).lower(jnp.zeros((8, 16), jnp.float32)).compile().as_text()


def test_bytes_of_each_kind():
    mesh = make_mesh(domain=4)
    rows = PartitionSpec("domain")
    local = 2 * 16 * 4

    def permute(x):
        return lax.ppermute(x, "domain", [(i, i + 1) for i in range(3)])

    def gather(x):
        return lax.all_gather(x, "domain", tiled=True).sum(0, keepdims=True) * x

    def reduce(x):
        return lax.psum(x, "domain")

    sent = {
        "collective-permute": (permute, rows, local),
        "all-gather": (gather, rows, 3 * local),
        "all-reduce": (reduce, PartitionSpec(), 2 * 3 / 4 * local),
    }
    for kind, (body, out, expected) in sent.items():
        (found,) = collectives(_compile(body, mesh, rows, out=out))
        assert (found.kind, found.times) == (kind, 1)
        assert found.sent == expected, f"{kind}: {found}"


def test_collectives_of_a_loop_count_as_often_as_it_runs():
    def body(x):
        def step(x, _):
            return lax.ppermute(x, "domain", [(0, 1), (1, 0)]) * 2.0, None

        return lax.scan(step, x, length=5)[0]

    spec = PartitionSpec("domain")
    (found,) = collectives(_compile(body, make_mesh(domain=2), spec))
    assert found.times == 5


def test_axes_of_groups():
    mesh = {"dp_shard": 2, "tp": 2, "domain": 2}
    cases = {
        (0, 1): ("domain",),
        (1, 3): ("tp",),
        (0, 4): ("dp_shard",),
        (0, 1, 4, 5): ("dp_shard", "domain"),
    }
    for members, expected in cases.items():
        assert Collective("all-reduce", 4, members, 1).axes(mesh) == expected


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("replica_groups={{0,2},{1,3}}", (0, 2)),
        ("replica_groups=[4,2]<=[8]", (0, 1)),
        ("replica_groups=[4,2]<=[2,2,2]T(1,0,2)", (0, 1)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=mesh['dp'=2,'tp'=4] {'dp'}", (0, 4)),
        ("replica_groups=mesh['dp'=2,'tp'=2,'domain'=2] {'dp','domain'}", (0, 1, 4, 5)),
    ],
)
def test_groups_are_read_however_they_are_written(text, members):
    hlo = f"""ENTRY %main (x: f32[4]) -> f32[4] {{
      ROOT %r = f32[4]{{0}} all-reduce(%x), {text}, to_apply=%add
    }}"""
    (found,) = collectives(hlo)
    assert found.members == members


# Communication volume of a training step.


def test_a_purpose_for_everything_that_moves():
    mesh = {"dp_shard": 2, "tp": 2, "domain": 2}

    def of(kind, members, name=""):
        return purpose(Collective(kind, 4, members, 1, name), mesh)

    assert of("all-gather", (0, 4)) == FSDP
    assert of("all-reduce", (0, 2)) == TENSOR
    assert of("all-reduce", (0, 1)) == SUMS
    assert of("all-gather", (0, 1), "jit(step)/decoder/norm/all_gather") == SUMS
    parameters = "jit(step)/(jvp(decoder)/norm/all_gather:jvp(parameters)/all_gather)"
    assert of("all-gather", (0, 1), parameters) == FSDP
    assert of("collective-permute", (0, 1), "jit(step)/halo/ppermute") == HALO
    assert of("all-to-all", (0, 1), "jit(step)/windows/all_to_all") == EXCHANGE
    with pytest.raises(ValueError, match="all-gather over"):
        of("all-gather", (0, 1), "an activation")


def test_least_volume_of_one_device_is_nothing():
    model_def = build(SMALL_MODEL)
    assert not any(least_volume(model_def, MeshAxes(), 8).values())
    replicas = MeshAxes.from_degrees({"dp_replicate": 4})
    least = least_volume(model_def, replicas, 8)
    assert least[SUMS] == pytest.approx(2 * 3 / 4 * 4 * model_def.num_parameters)
    assert not least[FSDP]


@pytest.fixture
def named():
    """Programs whose operations have their named scopes, as outside of tests."""
    name = "jax_include_full_tracebacks_in_locations"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    jax.clear_caches()
    yield
    jax.config.update(name, before)


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_volume_of_one_mesh(tmp_path):
    options = ["--model", "small", "--out", str(tmp_path)]
    volume = main(["--meshes", "dp2xtp2xdomain2", *options])
    (run,) = json.loads(volume.with_suffix(".json").read_text())["runs"]
    print("sent", run["sent"], "least", run["least"])
    ratio = {name: run["sent"][name] / run["least"][name] for name in run["least"]}
    assert 1.0 <= ratio[HALO] < 1.2, "rows beyond the convolutions' reach are moved"
    assert 1.0 <= ratio[TENSOR] < 1.2, "more is summed over tp than blocks need"
    assert 0.0 < ratio[FSDP] <= 1.0, "parameters are gathered more than twice"
    assert ratio[EXCHANGE] == 1.0, "long attention moves more than its two exchanges"


# Step times derived from the costs of compiled programs.


def _program(mesh, step, waits, *, over_domain=False):
    return {
        "mesh": mesh,
        "remat": "none",
        "over_domain": over_domain,
        "steps": {"1": step / 2, "2": step, "5": 2 * step},
        "exposed_seconds": waits,
    }


def _times(tmp_path, programs, *options):
    recipe = {"config": {"model": SMALL_MODEL}, "commit": "none"}
    report = {"target": "h100", "programs": programs, "recipe": recipe}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    written = times.main(["--report", str(path), "--out", str(tmp_path), *options])
    return json.loads(written.with_suffix(".json").read_text())["times"]


def test_step_times_add_up(tmp_path):
    times = _times(tmp_path, [_program("1", 0.1, 0.0), _program("domain8", 0.02, 5e-3)])
    one, eight, shards, *_ = times
    assert one["fsdp"] == 0
    assert one["none_hidden"] == one["kernels"] == 0.1
    assert eight["rate"] == 8 * one["rate"], "FSDP is hidden behind kernels"
    # Two gathers in two bytes and one scatter in four, each of 7/8 of the parameters.
    size = build(SMALL_MODEL).num_parameters
    assert eight["fsdp"] == pytest.approx(7 / 8 * 8 * size / 450e9, rel=0.02)
    assert shards["fsdp"] == 0, "sums over the domain axis are in the program"
    assert shards["kernels"] == pytest.approx(0.015)
    assert shards["none_hidden"] == 0.02


@pytest.mark.slow
def test_parameters_over_domain_send_an_eighth_to_other_nodes(tmp_path):
    found = []
    for shared in (False, True):
        eight = _program("domain8", 0.02, 5e-3, over_domain=shared)
        times = _times(tmp_path, [_program("1", 0.1, 0.0), eight])
        (time,) = (t for t in times if (t["devices"], t["mesh"]) == (64, "domain8"))
        found.append(time["fsdp"])
    # Within a node one gather more, in two bytes, of 7/8 of the parameters.
    within = 7 / 8 * 2 * build(SMALL_MODEL).num_parameters / 450e9
    print(f"{found[0]:.2e} s, shared {found[1]:.2e} s, of it {within:.2e} in the node")
    assert found[1] - within == pytest.approx(found[0] / 8, rel=0.1)


# Memory of a training step.


@pytest.mark.slow
def test_memory_of_one_mesh(tmp_path):
    path = memory.main(["--meshes", "1", "--model", "small", "--out", str(tmp_path)])
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert run["peak"] > run["temporary"] > 0
