"""Collectives read from compiled programs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.scale.hlo import Collective, collectives
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
