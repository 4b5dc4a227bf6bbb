"""Communication and memory read from compiled programs."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.comm_volume import (
    EXCHANGE,
    FSDP,
    SUMS,
    TENSOR,
    least_volume,
    purpose,
)
from benchmarks.comm_volume import main as comm_volume
from benchmarks.compile_time import main as compile_time
from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.hlo import Collective, collectives
from benchmarks.loader import main as loader
from benchmarks.memory import main as memory
from benchmarks.scaling import main as scaling
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.rows.reshard import HALO
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
    ],
)
def test_groups_are_read_however_they_are_written(text, members):
    hlo = f"""ENTRY %main (x: f32[4]) -> f32[4] {{
      ROOT %r = f32[4]{{0}} all-reduce(%x), {text}, to_apply=%add
    }}"""
    (found,) = collectives(hlo)
    assert found.members == members


def test_a_purpose_for_everything_that_moves():
    mesh = {"dp_shard": 2, "tp": 2, "domain": 2}

    def of(kind, members, name=""):
        return purpose(Collective(kind, 4, members, 1, name), mesh)

    assert of("all-gather", (0, 4)) == FSDP
    assert of("all-reduce", (0, 2)) == TENSOR
    assert of("all-reduce", (0, 1)) == SUMS
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


def test_reports_of_one_mesh(tmp_path):
    options = ["--model", "small", "--out", str(tmp_path)]
    volume = comm_volume(["--meshes", "dp2xtp2xdomain2", *options])
    (run,) = json.loads(volume.with_suffix(".json").read_text())["runs"]
    print("sent", run["sent"], "least", run["least"])
    ratio = {name: run["sent"][name] / run["least"][name] for name in run["least"]}
    assert 1.0 <= ratio[HALO] < 1.2, "rows beyond the convolutions' reach are moved"
    assert 1.0 <= ratio[TENSOR] < 1.2, "more is summed over tp than blocks need"
    assert 0.0 < ratio[FSDP] <= 1.0, "parameters are gathered more than twice"
    assert ratio[EXCHANGE] == 1.0, "long attention moves more than its two exchanges"
    table = memory(["--meshes", "1", *options])
    (run,) = json.loads(table.with_suffix(".json").read_text())["runs"]
    assert run["peak"] > run["temporary"] > 0


def test_step_times_add_up(tmp_path):
    path = scaling(
        ["--model", "small", "--meshes", "1", "domain2", "--out", str(tmp_path)]
    )
    found = json.loads(path.with_suffix(".json").read_text())
    one, two = found["parts"]
    assert 0.4 < two["flops"] / one["flops"] < 0.6, "two shards share the work"
    assert not any(one["bytes"].values())
    assert two["bytes"][HALO] > 0
    alone = found["times"][0]
    assert alone["none_hidden"] == pytest.approx(alone["compute"])


def test_compile_times(tmp_path):
    path = compile_time(
        ["--models", "small", "--depths", "1,1,1,1", "--out", str(tmp_path)]
    )
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert run["trace"] > 0
    assert run["compile"] > 0


@pytest.mark.parametrize("store", ["demo", "025deg"])
def test_loader_beside_the_step(store, tmp_path):
    options = ["--stores", store, "--grid", "16", "32", "--threads", "0", "1"]
    options += ["--seconds", "0.2", "--size", "tiny", "--out", str(tmp_path)]
    path = loader(options)
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert all(rate > 0 for rate in run["loader"].values())
    assert all(rate > 0 for rate in run["loader_none_kept"].values())
    assert run["loader_first"].keys() == run["loader"].keys()
    assert all(rate > 0 for rate in run["loader_first"].values())
    assert run["step"] > 0
