"""Parameter specs, sharding rules and packing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, TP, MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules, matrix_specs
from credit_jax.parallel.params.packing import PACKED, Packing
from credit_jax.parallel.params.spec import ParamSpec
from tests.support import make_mesh
from tests.support.gradients import draw

QKV = ParamSpec(
    (64, 3, 4, 16), ("embed", None, "heads", "head_dim"), matrix_out=(1, 2, 3)
)
UP = ParamSpec((64, 256), ("embed", "mlp"), matrix_out=(1,))
UP_BIAS = ParamSpec((256,), ("mlp",))
BIAS = ParamSpec((64,), ("embed",))
SMALL = ParamSpec((3, 3, 4, 4), (None, None, "conv_in", "conv_out"), matrix_out=(3,))
CONV = ParamSpec((3, 3, 60, 33), (None, None, "conv_in", "conv_out"), matrix_out=(3,))


def axes(**degrees):
    return MeshAxes.from_mesh(make_mesh(**degrees))


@pytest.mark.parametrize(
    ("param_spec", "degrees", "expected"),
    [
        (QKV, {}, P(None, None, None, None)),
        (QKV, {"dp": 2}, P(DP_SHARD, None, None, None)),
        (QKV, {"tp": 2}, P(None, None, TP, None)),
        (QKV, {"dp": 2, "tp": 2}, P(DP_SHARD, None, TP, None)),
        (QKV, {"domain": 2}, P(None, None, None, None)),
        (QKV.stack(6), {"dp": 2, "tp": 2}, P(None, DP_SHARD, None, TP, None)),
        (UP, {"dp": 2}, P(DP_SHARD, None)),
        (UP, {"dp": 2, "tp": 2}, P(DP_SHARD, TP)),
        (UP_BIAS, {"tp": 2}, P(TP)),
        (UP_BIAS, {"dp": 4}, P(None)),
        (BIAS, {"dp": 2, "tp": 2}, P(None)),
        (SMALL, {"dp": 2}, P(None, None, None, None)),
        (CONV, {"dp": 4}, P(None, None, DP_SHARD, None)),
        (CONV, {"dp": 8}, P(None, None, None, None)),
        (CONV, {"dp": 3}, P(DP_SHARD, None, None, None)),
    ],
)
def test_specs(param_spec, degrees, expected):
    assert ShardingRules().spec(param_spec, axes(**degrees)) == expected


@pytest.mark.parametrize(
    ("param_spec", "degrees", "expected"),
    [
        (QKV, {"dp": 2}, P(DP_SHARD, None, None, None)),
        (QKV, {"domain": 2}, P(DOMAIN, None, None, None)),
        (QKV, {"dp": 2, "domain": 4}, P((DOMAIN, DP_SHARD), None, None, None)),
        (QKV, {"dp": 2, "domain": 3}, P(DP_SHARD, DOMAIN, None, None)),
        (UP.stack(3), {"tp": 2, "domain": 4}, P(None, DOMAIN, TP)),
        (CONV, {"dp": 2, "domain": 3}, P(DOMAIN, None, DP_SHARD, None)),
        (CONV, {"domain": 8}, P(None, None, None, None)),
        (BIAS, {"domain": 2}, P(None)),
    ],
)
def test_specs_over_domain(param_spec, degrees, expected):
    rules, mesh = ShardingRules(over_domain=True), axes(**degrees)
    assert rules.spec(param_spec, mesh) == expected
    without = ShardingRules().shard_dim(param_spec, mesh)
    assert rules.shard_dim(param_spec, mesh) == without, "blocks see what they saw"


def test_rules_can_keep_parameters_whole():
    both = axes(dp=2, tp=2)
    assert ShardingRules(shard=False).spec(QKV, both) == P(None, None, TP, None)
    assert ShardingRules(tensor=()).spec(UP_BIAS, both) == P(None)


def test_matrices():
    assert QKV.matrix_in == (0,)
    assert QKV.stack(2).matrix_out == (2, 3, 4)
    assert QKV.stack(2).matrix_in == (1,)
    assert QKV.stack(2).unstack() == QKV
    assert QKV.unstack() is QKV
    specs = matrix_specs(QKV.stack(2), P(None, DP_SHARD, None, TP))
    assert specs == {"u": P(None, None, TP, None), "v": P(None, DP_SHARD)}


@pytest.mark.parametrize("num", [1, 2, 18])
def test_a_stack_is_split_where_its_blocks_are_gathered(num):
    both = axes(dp=2, tp=2)
    rules = ShardingRules()
    thin = ParamSpec((2, 64), ("embed", "embed"), matrix_out=(1,))
    for param_spec in (QKV, UP, UP_BIAS, BIAS, SMALL, CONV, thin):
        dim = rules.shard_dim(param_spec, both)
        expected = None if dim is None else dim + 1
        assert rules.shard_dim(param_spec.stack(num), both) == expected


def test_small_parameters():
    assert BIAS.is_small
    assert BIAS.stack(100).is_small, "a stack of biases is packed, however long"
    assert SMALL.is_small
    assert not CONV.is_small
    assert not UP_BIAS.is_small, "what tp splits is never packed"


def test_packing_round_trip():
    param_specs = {"b": BIAS, "conv": CONV, "a/small": SMALL, "up": UP_BIAS}
    params = {
        path: jnp.asarray(draw(d.shape, seed=i))
        for i, (path, d) in enumerate(param_specs.items())
    }
    packing = Packing.of(param_specs)
    assert [path for path, _ in packing.shapes] == ["a/small", "b"]
    packed = packing.pack(params)
    assert set(packed) == {"conv", "up", PACKED}
    described = packing.param_specs(param_specs)
    assert {path: d.shape for path, d in described.items()} == {
        path: value.shape for path, value in packed.items()
    }
    forms = packing.unpack(packed), packing.unpack(jax.device_get(packed))
    for back in (*forms, jax.jit(packing.unpack)(packed)):
        assert set(back) == set(params)
        assert all(np.array_equal(back[path], params[path]) for path in params)


def test_nothing_to_pack():
    param_specs = {"conv": CONV}
    params = {"conv": jnp.zeros(CONV.shape)}
    packing = Packing.of(param_specs)
    assert set(packing.pack(params)) == {"conv"}
    assert packing.param_specs(param_specs) == param_specs
    assert set(packing.unpack(params)) == {"conv"}


def test_parts_have_the_type_of_the_vector():
    """Trees of shapes, specs and shardings have every parameter by itself, too."""
    param_specs = {"b": BIAS, "conv": CONV, "a/small": SMALL}
    packing, mesh = Packing.of(param_specs), make_mesh(dp=2)
    whole = NamedSharding(mesh, P())
    shape = jax.ShapeDtypeStruct((packing.size,), jnp.float32, sharding=whole)
    small = packing.unpack({PACKED: shape})["a/small"]
    assert (small.shape, small.sharding) == (SMALL.shape, whole)
    for leaf in (P(), whole):
        tree = {"mu": {PACKED: leaf, "conv": leaf}, "count": leaf}
        moments = dict.fromkeys(param_specs, leaf)
        assert packing.unpack_tree(tree) == {"mu": moments, "count": leaf}
    vector = jax.device_put(jnp.arange(packing.size, dtype=jnp.float32), whole)
    parts = packing.unpack({PACKED: vector})
    assert all(part.sharding == whole for part in parts.values())
