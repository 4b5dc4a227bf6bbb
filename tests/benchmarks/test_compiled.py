"""Communication and memory read from compiled programs."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.comm_volume import least_volume
from benchmarks.comm_volume import main as comm_volume
from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.hlo import collectives
from benchmarks.memory import main as memory
from credit_jax.models.registry import build
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


def test_least_volume_of_one_device_is_nothing():
    architecture = build(SMALL_MODEL)
    assert not any(least_volume(architecture, {}, 8).values())
    replicas = least_volume(architecture, {"dp_replicate": 4}, 8)
    assert replicas["gradients"] == pytest.approx(
        2 * 3 / 4 * 4 * architecture.num_parameters
    )


def test_reports_of_one_mesh(tmp_path):
    options = ["--batch", "1", "--out", str(tmp_path)]
    volume = comm_volume(["--meshes", "domain2", *options])
    (run,) = json.loads(volume.with_suffix(".json").read_text())["runs"]
    print("sent", run["sent"], "least", run["least"])
    assert run["number"]["collective-permute"] > 0
    halos = run["sent"]["collective-permute"] / run["least"]["halo"]
    exchanges = run["sent"]["all-to-all"] / run["least"]["long attention"]
    assert 1.0 <= halos < 1.2, "rows beyond the convolutions' reach are moved"
    assert exchanges == 1.0, "long attention moves more than its two exchanges"
    table = memory(["--meshes", "1", *options])
    (run,) = json.loads(table.with_suffix(".json").read_text())["runs"]
    assert run["peak"] > run["temporary"] > 0
