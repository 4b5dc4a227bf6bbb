"""A layer of experts on meshes with ep, tp and split rows against one device.

With these arrays the gaps between routing scores are far above rounding: no token is
near a tie.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from credit_jax.nn.context import Context
from credit_jax.nn.experts import ExpertFeedForward, Routing
from credit_jax.nn.parameters import Parameter, named_variables, param_spec_of
from credit_jax.nn.run_blocks import run_block
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.ops.experts import balance_loss
from credit_jax.parallel.collectives import axis_index, psum
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.mesh.device_mesh import mesh_of_degrees
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import ShardingRules, pvary_params
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import DENSE_TENSOR_DIMS, TENSOR_DIMS
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from tests.support import assert_close, assert_trees_close
from tests.support.gradients import draw
from tests.support.sharded import with_values

BATCH, ROWS, COLUMNS, CHANNELS, EXPERTS, CHOICES = 8, 6, 4, 16, 8, 2
KEY, PRECISION = jax.random.key(5), Precision.of("float64")


def layer() -> nnx.Module:
    routing = Routing(EXPERTS, CHOICES, shared=1)
    made = ExpertFeedForward(CHANNELS, routing=routing, expansion=2, dropout=0.25)
    return apply_tensor_parallel(made)


def _zeros() -> dict[str, Any]:
    wide = {name: jnp.zeros(EXPERTS) for name in ("load", "probability")}
    return {**wide, "router_z": jnp.zeros(())}


def run(etp: int | None = None, **degrees: int) -> Any:
    """Returns (output, statistics, gradients) of a training forward as whole arrays."""
    with jax.enable_x64(True):
        return _run(etp, tuple(degrees.items()))


@cache
def _run(etp: int | None, degrees: tuple[tuple[str, int], ...]) -> Any:
    program, args = _program(etp, degrees)
    out, stats, grads = jax.device_get(program(*args))
    return out[:, :ROWS], stats, grads


def _program(etp: int | None, sizes: tuple[tuple[str, int], ...]) -> Any:
    """Returns a training forward with gradient on a mesh, and its arguments."""
    degrees = dict(sizes)
    count = math.prod(degrees.values())
    dims = ParallelDims(**degrees, etp=etp or degrees.get("tp", 1), world_size=count)
    axes = dims.mesh_axes
    split = TENSOR_DIMS if dims.etp == dims.tp else DENSE_TENSOR_DIMS
    rules = ShardingRules(split, min_shard_size=1)
    variables = named_variables(layer(), Parameter)
    param_specs = {path: param_spec_of(v) for path, v in variables}
    specs = rules.specs(param_specs, axes)

    def body(params: Any, x: Any, key: Any) -> Any:
        rank = jnp.int32(0)
        for name in axes.data:
            rank = rank * degrees.get(name, 1) + axis_index(name)
        first = {"key": key, "first_sample": rank * len(x)}
        context = Context(axes=axes, rules=rules, precision=PRECISION, **first)

        def loss(params: Any) -> Any:
            spread = pvary_params(params, axes.batch, PRECISION)
            module = with_values(layer(), {**spread, **_zeros()})
            blocks = context.rows(ROWS)
            layout = Windows(ROWS, COLUMNS, 2, 2).layouts(blocks)[0]
            assert (layout.strips > 1) == (axes.num_domain > 1)
            out = run_block(context, module, reshard(Field(x, blocks), layout))
            out = reshard(out, blocks)
            out = jnp.where(out.mask(), out.data, 0.0)
            stats = {p: v[...] for p, v in named_variables(module, nnx.BatchStat)}
            extra = balance_loss(stats["load"], stats["probability"])
            value = psum(jnp.sum(out * jnp.cos(3 * x)), axes.batch)
            return value + extra + stats["router_z"], (out, stats)

        (_, (out, stats)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return out, stats, grads

    spec = P(axes.data or None, axes.domain)
    sharded = jax.shard_map(
        body,
        mesh=mesh_of_degrees(dims.axis_degrees, jax.devices()[:count]),
        in_specs=(specs, spec, P()),
        out_specs=(spec, P(), specs),
    )
    params = jax.jit(partial(initialize, param_specs))(jax.random.key(1))
    rng = np.random.default_rng(2)
    params = {
        p: np.asarray(w, np.float64) + 0.1 * rng.normal(size=w.shape)
        for p, w in params.items()
    }
    x = draw((BATCH, ROWS, COLUMNS, CHANNELS), 3, np.float64)
    x = np.pad(x, ((0, 0), (0, -ROWS % axes.num_domain), (0, 0), (0, 0)))
    return jax.jit(sharded), (params, x, KEY)


@pytest.mark.slow(but=["None-{'ep': 2, 'domain': 4}"])
@pytest.mark.parametrize(
    ("etp", "degrees"),
    [
        (None, {"dp_shard": 2, "ep": 2, "tp": 2}),
        (1, {"dp_shard": 2, "ep": 2, "tp": 2}),
        (None, {"dp_shard": 2, "ep": 4}),
        (None, {"ep": 2, "domain": 4}),
        (None, {"dp_replicate": 2, "dp_shard": 2, "domain": 2}),
    ],
    ids=str,
)
def test_equals_one_device(etp: int | None, degrees: dict[str, int]) -> None:
    """Output, statistics of the whole batch, and every gradient; with dropout.

    6 rows on 4 shards are in strips with padding, which the statistics exclude.
    """
    out, stats, grads = run(etp, **degrees)
    expected, expected_stats, expected_grads = run()
    what = f"experts on {degrees}, etp {etp}"
    assert_close(out, expected, 1e-13, f"{what}: output")
    assert_trees_close(stats, expected_stats, 1e-13, f"{what}: statistics")
    assert_trees_close(grads, expected_grads, 1e-12, f"{what}: gradients")


def test_collectives_of_a_layer() -> None:
    """Two gathers and a scatter in the forward pass, their transposes in the backward.

    Dropout gathers the indices of the tokens in addition.
    """
    with jax.enable_x64(True):
        program, args = _program(None, (("ep", 2),))
        text = program.lower(*args).as_text()
    assert text.count("stablehlo.all_gather") == 3 + 1
    assert text.count("stablehlo.reduce_scatter") == 1 + 2
    assert text.count("stablehlo.all_to_all") == 0


def test_bfloat16_stays_near_float32() -> None:
    """Routing, routing weights and sums over choices are in float32."""
    routing = Routing(EXPERTS, CHOICES)
    module = ExpertFeedForward(CHANNELS, routing=routing)
    specs = {p: param_spec_of(v) for p, v in named_variables(module, Parameter)}
    params = initialize(specs, jax.random.key(1))
    x = jnp.asarray(draw((1, ROWS, COLUMNS, CHANNELS)))

    def run(name: str) -> np.ndarray:
        precision = Precision.of(name)
        context = Context(precision=precision)
        weights = {path: precision.cast(w) for path, w in params.items()}

        @jax.jit
        def forward(weights: Any, x: Any) -> Any:
            built: Any = with_values(module, {**weights, **_zeros()})
            return built(Field(x, context.rows(ROWS)), context).data

        out = forward(weights, precision.cast(x))
        assert out.dtype == precision.compute
        return np.asarray(out, np.float32)

    assert_close(run("bfloat16"), run("float32"), 2e-2, "bfloat16")


def test_statistics_are_those_of_the_choices() -> None:
    _, stats, grads = run()
    assert np.isclose(stats["load"].sum(), 1.0)
    assert np.isclose(stats["probability"].sum(), 1.0)
    assert (stats["load"] > 0).all(), "an expert that nobody chose proves nothing"
    assert all(np.abs(g).max() > 0 for g in grads.values())


def test_experts_are_split_over_ep_and_their_units_over_tp() -> None:
    axes = ParallelDims(dp_shard=2, ep=2, tp=2, world_size=8).mesh_axes
    specs = {path: param_spec_of(v) for path, v in named_variables(layer(), Parameter)}
    up, bias = specs["up"], specs["up_bias"]
    rules = ShardingRules(min_shard_size=1)
    assert rules.spec(up, axes) == P("ep", "dp_shard", "tp")
    assert rules.spec(specs["router"], axes) == P(None, None), "it is small"
    assert rules.spec(bias, axes) == P("ep", "tp")
    whole = ShardingRules(DENSE_TENSOR_DIMS, min_shard_size=1)
    assert whole.spec(up, axes) == P("ep", "dp_shard", None)
    assert not bias.is_small, "it is not packed with whole parameters"
    assert up.matrix_out is None, "no spectral norm"
