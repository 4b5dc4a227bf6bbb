"""Parameters on meshes: their first values, sharding and gathers."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, TP, MeshAxes
from credit_jax.parallel.params import fsdp, init
from credit_jax.parallel.params.fsdp import (
    ShardingRules,
    gather_over_domain,
    matrix_specs,
)
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.packing import PACKED, Packing
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import (
    ParamSpec,
    constant,
    icnr,
    torch_uniform,
    xavier_normal,
)
from tests.support import assert_close, make_mesh
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


def test_matrices():
    assert QKV.matrix_in == (0,)
    assert QKV.stack(2).matrix_out == (2, 3, 4)
    assert QKV.stack(2).matrix_in == (1,)
    assert QKV.stack(2).unstack() == QKV
    assert QKV.unstack() is QKV
    specs = matrix_specs(QKV.stack(2), P(None, DP_SHARD, None, TP))
    assert specs == {"u": P(None, None, TP, None), "v": P(None, DP_SHARD)}


def test_a_stack_is_split_where_its_blocks_are_gathered():
    both, rules = axes(dp=2, tp=2), ShardingRules()
    thin = ParamSpec((2, 64), ("embed", "embed"), matrix_out=(1,))
    for param_spec in (QKV, UP, UP_BIAS, BIAS, SMALL, CONV, thin):
        dim = rules.shard_dim(param_spec, both)
        expected = None if dim is None else dim + 1
        for num in (1, 2, 18):
            assert rules.shard_dim(param_spec.stack(num), both) == expected
    assert ShardingRules(shard=False).spec(QKV, both) == P(None, None, TP, None)
    assert ShardingRules(tensor=()).spec(UP_BIAS, both) == P(None)


def test_packing_round_trip():
    param_specs = {"b": BIAS, "conv": CONV, "a/small": SMALL, "up": UP_BIAS}
    params = {
        path: jnp.asarray(draw(d.shape, seed=i))
        for i, (path, d) in enumerate(param_specs.items())
    }
    packing = Packing.of(param_specs)
    # What tp splits is never packed; a stack of biases is, however long.
    assert [path for path, _ in packing.shapes] == ["a/small", "b"]
    assert BIAS.stack(100).is_small
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
    param_specs, params = {"conv": CONV}, {"conv": jnp.zeros(CONV.shape)}
    packing = Packing.of(param_specs)
    assert packing.param_specs(param_specs) == param_specs
    assert set(packing.pack(params)) == set(packing.unpack(params)) == {"conv"}


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


# Initial values: distributions, equality on every mesh, creation by shards.


KEY = jax.random.key(7)
DECLARATIONS = {
    "uniform": ParamSpec((128, 256), ("embed", "mlp"), torch_uniform(128)),
    "bias": ParamSpec((256,), ("mlp",), torch_uniform(128)),
    "normal": ParamSpec(
        (3, 3, 64, 64), (None, None, "conv_in", "conv_out"), xavier_normal(576, 576)
    ),
    "icnr": ParamSpec(
        (3, 3, 32, 64), (None, None, "conv_in", "conv_out"), icnr(288, 2)
    ),
    "stacked": ParamSpec(
        (64, 3, 4, 8), ("embed", None, "heads", "head_dim"), torch_uniform(64)
    ).stack(3),
    "ones": ParamSpec((64,), ("embed",), constant(1.0)),
}


def sharded(**degrees):
    """Returns the compiled initialization on a mesh."""
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    shape = dict(mesh.shape)
    run = jax.shard_map(
        lambda key: initialize(DECLARATIONS, key, specs, shape),
        mesh=mesh,
        in_specs=P(),
        out_specs=specs,
    )
    return jax.jit(run).lower(KEY).compile()


@pytest.fixture(scope="module")
def whole():
    values = jax.jit(lambda key: initialize(DECLARATIONS, key))(KEY)
    return {path: np.asarray(value) for path, value in values.items()}


@pytest.mark.parametrize(
    "degrees",
    [
        {"dp": 2},
        {"dp": 8},
        {"tp": 4},
        {"domain": 3},
        {"dp": 2, "tp": 2, "domain": 2},
    ],
)
def test_values_are_the_same_on_every_mesh(whole, degrees):
    values = sharded(**degrees)(KEY)
    assert set(values) == set(whole)
    for path, value in values.items():
        assert np.array_equal(value, whole[path]), f"{path} on {degrees}"


@pytest.mark.parametrize("degrees", [{"dp": 8}, {"dp": 2, "tp": 2}])
def test_no_array_is_larger_than_the_local_shards(monkeypatch, degrees):
    monkeypatch.setattr(init, "CHUNK", 4096)
    program = sharded(**degrees)
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    local = 0
    for path, param_spec in DECLARATIONS.items():
        names = [name for name in specs[path] if name]
        local += param_spec.size // math.prod(mesh.shape[name] for name in names)
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", program.as_text())
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    total = sum(d.size for d in DECLARATIONS.values())
    print(f"{degrees}: {total} elements, {local} local, largest array {largest}")
    assert largest <= local + 4096
    assert "all-gather" not in program.as_text()


def test_distributions(whole):
    values, bound = whole["uniform"], 1 / math.sqrt(128)
    assert 0.999 * bound < np.abs(values).max() < bound
    assert values.mean() == pytest.approx(0, abs=4 * bound / math.sqrt(3 * values.size))
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    values = whole["normal"] / math.sqrt(2 / 1152)
    assert values.std() == pytest.approx(1.0, rel=0.02)
    assert values.mean() == pytest.approx(0, abs=4 / math.sqrt(values.size))
    assert (values**4).mean() == pytest.approx(3, rel=0.1), "the tails are not normal"
    assert np.isfinite(values).all()
    # One draw for every subpixel.
    values = whole["icnr"].reshape(3, 3, 32, 16, 4)
    assert (values == values[..., :1]).all()
    assert len(np.unique(values[..., 0])) > 0.99 * values[..., 0].size
    assert values.std() == pytest.approx(math.sqrt(2 / 288), rel=0.05)


def test_no_two_parameters_or_blocks_are_alike(whole):
    flat = np.concatenate([whole["uniform"].ravel(), whole["bias"]])
    assert len(np.unique(flat)) > 0.99 * flat.size
    assert not (whole["stacked"][0] == whole["stacked"][1]).any()
    other = initialize(DECLARATIONS, jax.random.key(8))
    assert not (np.asarray(other["uniform"]) == whole["uniform"]).any()
    assert (whole["ones"] == 1).all()


# Parameters that are stored sharded over the domain axis, gathered for a forward.


# Of 2**17 elements, which are gathered block by block, and of few.
LARGE = ParamSpec((256, 512), ("embed", "mlp"), matrix_out=(1,))
SMALL_FSDP = ParamSpec((64, 32), ("embed", "mlp"), matrix_out=(1,))
# Sharded over dp and domain along the same dim, and along two.
ONE_DIM = ParamSpec((192, 32), ("embed", "mlp"), matrix_out=(1,))
TWO_DIMS = ParamSpec((3, 3, 64, 30), (None, None, None, None), matrix_out=(3,))
PARAM_SPECS = {"large": LARGE.stack(3), "small": SMALL_FSDP.stack(3), "alone": LARGE}
RULES = ShardingRules(over_domain=True)


def gathered(
    whole: dict[str, np.ndarray],
    specs: dict[str, ParamSpec],
    precision: Precision,
    num_unrolled: int = 0,
    **degrees: int,
) -> tuple[Any, Any, str]:
    """Returns what shards gather, the gradients of a function of it, and the trace."""
    mesh = make_mesh(**degrees)
    axes, split = MeshAxes.from_mesh(mesh), {}
    for path, array in whole.items():
        # Dims of calls are before the matrix.
        names = tuple(RULES.spec(specs[path], axes))
        calls = (None,) * (array.ndim - len(names))
        split[path] = P(*names[:-2], *calls, *names[-2:])

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(split,),
        out_specs=(P(axes.batch), split),
    )
    def run(local: Any) -> Any:
        rank = lax.axis_index(axes.batch) + 1.0

        def loss(local: Any) -> Any:
            local = gather_over_domain(
                local, specs, RULES, axes, precision, num_unrolled=num_unrolled
            )
            full = {
                path: fsdp.gather(array, specs[path], RULES, axes, precision)
                for path, array in local.items()
            }
            terms = [jnp.sin(rank * x.astype(jnp.float32)).sum() for x in full.values()]
            return lax.psum(sum(terms), axes.batch), full

        gradient, full = jax.grad(loss, has_aux=True)(local)
        return full, gradient

    full, gradient = jax.device_get(run(whole))
    text = str(jax.make_jaxpr(run)(whole))
    num = mesh.size
    for path, array in whole.items():
        rounded = array.astype(full[path].dtype)
        np.testing.assert_array_equal(full[path], np.concatenate([rounded] * num), path)
        wide = rounded.astype(np.float64)
        exact = sum(n * np.cos(n * wide) for n in range(1, num + 1))
        # Gradients of values in bfloat16 are in bfloat16 before they are summed.
        narrow = precision.compute == jnp.bfloat16
        bound = 3e-3 if narrow else 2e-7 if axes.num_shard == 1 else 3e-7
        assert_close(gradient[path], exact, bound, f"{path}: gradient")
    return full, gradient, text


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block_by_block_or_at_once(
    dtype: str, calls: int, rng: np.random.Generator
) -> None:
    dims, whole = (calls,) if calls else (), {}
    for path, spec in PARAM_SPECS.items():
        shape = (*spec.shape[:-2], *dims, *spec.shape[-2:])
        whole[path] = rng.normal(size=shape).astype(np.float32)
    at_once, *others = (
        gathered(whole, PARAM_SPECS, Precision.of(dtype), unrolled, domain=4)
        for unrolled in (0, 3, 2)
    )
    chex.assert_trees_all_equal(at_once[:2], *(other[:2] for other in others))
    gathers = [text.count("= all_gather[") for *_, text in (at_once, *others)]
    assert gathers == [3, 5, 3], "one for each of the large blocks of short stages"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [ONE_DIM, TWO_DIMS], ids=["one dim", "two dims"])
def test_over_dp_and_then_over_domain(
    spec: ParamSpec, dtype: str, rng: np.random.Generator
) -> None:
    """The gathers over dp are of the shards of domain, the sums of gradients, too."""
    whole = {"w": rng.normal(size=spec.shape).astype(np.float32)}
    *_, text = gathered(whole, {"w": spec}, Precision.of(dtype), dp=2, domain=3)
    moved = re.findall(
        r"\w+\[([\d,]+)\][^=\n]* = (all_gather|reduce_scatter)\[.*?"
        r"axis_name=\('(\w+)',\)",
        text,
        re.S,
    )
    size = whole["w"].size
    sizes = [(*how, size // math.prod(map(int, n.split(",")))) for n, *how in moved]
    assert sizes == [
        ("all_gather", DP_SHARD, 3),
        ("all_gather", DOMAIN, 1),
        ("reduce_scatter", DOMAIN, 3),
        ("reduce_scatter", DP_SHARD, 6),
    ]
