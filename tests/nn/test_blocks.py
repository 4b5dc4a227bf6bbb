"""Blocks with dropout on meshes, in float64: transformer blocks, Ulysses, experts.

With these arrays the gaps between routing scores are far above rounding: no token is
near a tie.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.models.crossformer.blocks import TransformerBlock
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Context
from credit_jax.nn.experts import ExpertFeedForward, Routing
from credit_jax.nn.parameters import Parameter, named_variables, param_spec_of
from credit_jax.nn.run_blocks import run_block
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.ops.experts import balance_loss
from credit_jax.parallel.collectives import axis_index, psum
from credit_jax.parallel.domain.attention import HeadExchange, attention_layout
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import partition, window_grid
from credit_jax.parallel.mesh.device_mesh import mesh_of_degrees
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import ShardingRules, pvary_params
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import DENSE_TENSOR_DIMS, TENSOR_DIMS
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.models.cases import BASE
from tests.models.parity import assert_joint, mesh_of
from tests.support import assert_close, assert_trees_close
from tests.support.gradients import draw
from tests.support.sharded import with_values

BATCH, CHANNELS, EXPERTS = 8, 16, 8
# Windows of 2 rows and of 3: 6 bands and 4 groups of 12 rows, 9 and 6 of 18.
SHORT, LONG = 2, 3
PRECISION = Precision.of("float64")


def transformer() -> nnx.Module:
    rates = {"attn_dropout": 0.3, "ff_dropout": 0.2}
    made = TransformerBlock(CHANNELS, SHORT, LONG, dim_head=4, **rates)
    return apply_tensor_parallel(made)


def experts() -> nnx.Module:
    routing = Routing(EXPERTS, 2, shared=1)
    made = ExpertFeedForward(CHANNELS, routing=routing, expansion=2, dropout=0.25)
    return apply_tensor_parallel(made)


def _statistics() -> dict[str, Any]:
    wide = {name: jnp.zeros(EXPERTS) for name in ("load", "probability")}
    return {**wide, "router_z": jnp.zeros(())}


@cache
def lowered(
    make: Any,
    rows: int,
    sizes: tuple[tuple[str, int], ...],
    ulysses: int | None = None,
    etp: int | None = None,
    drops: bool = True,
    implementation: str = "xla",
) -> Any:
    """Returns a training forward with gradient of a block, and its arguments."""
    degrees = dict(sizes)
    options = {"ulysses_degree": ulysses, "etp": etp or degrees.get("tp", 1)}
    world_size = math.prod(degrees.values())
    dims = ParallelDims(**degrees, **options, world_size=world_size)
    axes, has_experts = dims.mesh_axes, make is experts
    split = TENSOR_DIMS if dims.etp == dims.tp else DENSE_TENSOR_DIMS
    rules = ShardingRules(split, min_shard_size=1)
    variables = named_variables(make(), Parameter)
    param_specs = {path: param_spec_of(v) for path, v in variables}
    specs = rules.specs(param_specs, axes)

    def body(params: Any, x: Any, key: Any) -> Any:
        rank = jnp.int32(0)
        for name in axes.data:
            rank = rank * lax.axis_size(name) + axis_index(name)
        context = Context(
            axes=axes,
            rules=rules,
            precision=PRECISION,
            key=key if drops else None,
            first_sample=rank * len(x),
        )

        def loss(params: Any) -> Any:
            spread = pvary_params(params, axes.batch, PRECISION)
            stats = _statistics() if has_experts else {}
            module = with_values(make(), {**spread, **stats})
            field = Field(x, context.rows(rows))
            if has_experts:
                layout = Windows(rows, x.shape[2], 2, 2).layouts(field.layout)[0]
                assert (layout.strips > 1) == (axes.num_domain > 1)
                out = run_block(context, module, reshard(field, layout))
            else:
                out = module(field, context)
            out = reshard(out, field.layout)
            out = jnp.where(out.mask(), out.data, 0.0)
            value = psum(jnp.sum(out * jnp.cos(3 * x)), axes.batch)
            if has_experts:
                named = named_variables(module, nnx.BatchStat)
                stats = {path: v[...] for path, v in named}
                value += balance_loss(stats["load"], stats["probability"])
                value += stats["router_z"]
            return value, (out, stats)

        (_, (out, stats)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return out, stats, grads

    spec = P(axes.data or None, axes.domain)
    sharded = jax.shard_map(
        body,
        mesh=mesh_of_degrees(dims.axis_degrees, jax.devices()[:world_size]),
        in_specs=(specs, spec, P()),
        out_specs=(spec, P(), specs),
    )
    params = jax.jit(lambda key: initialize(param_specs, key))(jax.random.key(1))
    rng = np.random.default_rng(2)
    params = {
        p: np.asarray(w, np.float64) + 0.1 * rng.normal(size=w.shape)
        for p, w in params.items()
    }
    x = draw((BATCH, rows, 4 if has_experts else 6, CHANNELS), 3, np.float64)
    x = np.pad(x, ((0, 0), (0, -rows % axes.num_domain), (0, 0), (0, 0)))
    with use_implementation(implementation):
        return jax.jit(sharded).lower(params, x, jax.random.key(0)), (params, x)


@cache
def compiled(*case: Any) -> Any:
    program, args = lowered(*case)
    return program.compile(), args


def run(make: Any, rows: int, degrees: dict[str, int], *how: Any, key: int = 5) -> Any:
    """Returns (output, statistics, gradients) as whole arrays."""
    with jax.enable_x64(True):
        program, args = compiled(make, rows, tuple(degrees.items()), *how)
        out, *others = jax.device_get(program(*args, jax.random.key(key)))
    return out[:, :rows], *others


def assert_same_block(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Asserts equal outputs, statistics, and gradients of weights that have one."""
    assert_close(actual[0], expected[0], bound, f"{what}: forward")
    if expected[1]:
        assert_trees_close(actual[1], expected[1], bound, f"{what}: statistics")
    largest = max(np.linalg.norm(g) for g in expected[2].values())
    # A number added to all logits of a softmax: its gradient is zero but for rounding.
    zeros = [p for p in actual[2] if p.endswith("position_bias/linear_3/bias")]
    assert all(np.linalg.norm(actual[2][path]) < 1e-13 * largest for path in zeros)
    grads, wanted = (
        {path: gradient for path, gradient in tree[2].items() if path not in zeros}
        for tree in (actual, expected)
    )
    assert_trees_close(grads, wanted, 10 * bound or 1e-13, f"{what}: gradients")
    assert_joint(grads, wanted, bound or 1e-15, what)


@pytest.mark.slow(but=["12-degrees0-None-True", "12-degrees4-2-True"])
@pytest.mark.parametrize(
    ("rows", "degrees", "ulysses", "drops"),
    [
        (12, {"dp_replicate": 2, "tp": 2, "domain": 2}, None, True),
        # In strips, as 4 shards do not divide 6 bands of windows.
        *((12, {"domain": 4}, groups, True) for groups in (None, 2, 4)),
        (12, {"domain": 2, "tp": 2}, 2, True),
        (18, {"domain": 4}, 4, False),
        (18, {"domain": 8}, 4, True),
        (18, {"dp_replicate": 2, "domain": 4}, 2, True),
        (24, {"domain": 8}, 2, True),
    ],
)
def test_transformer_blocks(
    rows: int, degrees: dict[str, int], ulysses: int | None, drops: bool
) -> None:
    """Groups, bitwise, beside windows on the same mesh; these beside one device."""
    what = f"{rows} rows on {degrees}, groups of {ulysses}"
    actual = run(transformer, rows, degrees, ulysses, None, drops)
    mesh = degrees if ulysses else {}
    expected = run(transformer, rows, mesh, None, None, drops)
    assert_same_block(actual, expected, 0.0 if ulysses else 1e-13, what)


def test_every_sample_has_its_own_mask_and_evaluation_has_none() -> None:
    how = transformer, 12, {}
    out = run(*how)[0]
    for other in (run(*how, None, None, False), run(*how, key=12)):
        assert np.abs(out - other[0]).max() > 0.1, "nothing is dropped, or alike"
    assert np.array_equal(out, run(*how)[0]), "the same key gives another mask"


@pytest.mark.slow
def test_kernels_of_cpus() -> None:
    """Their LayerNorm computes means by a matrix-vector product.

    XLA on CPU sums the rows after the last full vector register in another order, and
    their number depends on the number of rows.
    """
    out, expected = (
        run(transformer, 18, {"domain": 8}, groups, None, True, "cpu")[0]
        for groups in (4, None)
    )
    assert_close(out, expected, 1e-15, "kernels of CPUs: forward")


def test_two_exchanges_an_attention() -> None:
    """Each pass exchanges heads for rows and back; no other rows move.

    If the group is as large as the axis, long windows need the same rows as short ones.
    Hence only the four exchanges of two attentions and their transposes remain.
    """
    mesh = (("domain", 2), ("tp", 2))
    with jax.enable_x64(True):
        text = lowered(transformer, 12, (("domain", 4),), 4)[0].as_text()
        optimized = compiled(transformer, 12, mesh, 2, None, True)[0].as_text()
    assert text.count("stablehlo.all_to_all") == 8
    assert text.count("stablehlo.collective_permute") == 0
    assert len(re.findall(r" all-to-all(?:-start)?\(", optimized)) == 8
    assert not re.findall(r" collective-permute(?:-start)?\(", optimized)


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("degree", [2, 4])
def test_rows_and_heads_change_places(kind: Any, degree: int) -> None:
    """The round trip is bitwise; a shard has whole windows of every fourth head."""
    blocks = block_layout(18, 4, "domain")
    layout = attention_layout(blocks, 18, kind, LONG, degree)
    assert layout.length <= 6, "rows are shared out evenly"
    exchange = HeadExchange(layout, kind, LONG, degree)
    x = draw((1, 20, 6, 3, 4, 2))

    def body(x: Any) -> Any:
        field = reshard(Field(x, blocks), layout)
        seen = exchange.to_heads(field.data)
        back = reshard(field.like(exchange.to_rows(seen.data)), blocks).data
        grid = window_grid(seen, kind, LONG)
        window, token = map(jnp.asarray, np.indices((grid.windows, grid.tokens)))
        points = seen.data[..., 0, 0, 0].reshape(-1)[grid.locate(window, token)]
        flat = seen.like(seen.data.reshape(*seen.data.shape[:3], -1))
        return back, points[None], partition(flat, kind, LONG)[..., 0]

    split, parts = P(None, "domain"), P("domain")
    run = jax.shard_map(
        body, mesh=mesh_of("domain4"), in_specs=split, out_specs=(split, parts, parts)
    )
    back, points, windows = jax.jit(run)(x)
    assert np.array_equal(back[:, :18], x[:, :18])
    assert np.array_equal(points, windows), "kernels of GPUs see other windows"
    numbers = np.asarray(windows)[: 4 if degree == 4 else 2].reshape(-1)
    assert np.isin(x[0, :18, :, 0, :: 4 // degree, 0], windows).all()
    assert len(numbers) == len(np.unique(numbers))


def test_types_hold_on_the_kernels_of_gpus() -> None:
    """One kernel attends to all rows of the group."""
    section = {**BASE, "depth": [1, 0, 0, 0]}
    model = build_parallel_model(section, mesh_of("domain2"), ulysses_degree=2)
    x = jax.ShapeDtypeStruct((1, 7, 1, 30, 32), jnp.float32)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    with use_implementation("gpu"):
        y = jax.eval_shape(lambda w, x: model.apply(*w, {"x": x}), weights, x)
    assert y.shape == (1, 6, 1, 30, 32)


@pytest.mark.slow
def test_a_whole_model_with_groups() -> None:
    """Embeddings, decoder and skips read rows from the even layout of the groups."""
    x, forecasts = {"x": jnp.asarray(draw((1, 7, 1, 30, 32)))}, []
    for groups in (2, None):
        model = build_parallel_model(BASE, mesh_of("domain2"), ulysses_degree=groups)
        forecasts.append(model.apply(*model.init(jax.random.key(0)), x))
    assert_close(*forecasts, 1e-6, "wxformer in groups of 2")


@pytest.mark.slow(but=["None-{'ep': 2, 'domain': 4}"])
@pytest.mark.parametrize(
    ("etp", "degrees"),
    [
        *((etp, {"dp_shard": 2, "ep": 2, "tp": 2}) for etp in (None, 1)),
        (None, {"dp_shard": 2, "ep": 4}),
        (None, {"ep": 2, "domain": 4}),
        (None, {"dp_replicate": 2, "dp_shard": 2, "domain": 2}),
    ],
    ids=str,
)
def test_experts(etp: int | None, degrees: dict[str, int]) -> None:
    """Output, statistics of the whole batch, and every gradient; with dropout.

    6 rows on 4 shards are in strips with padding, which the statistics exclude.
    """
    actual, expected = run(experts, 6, degrees, None, etp), run(experts, 6, {})
    assert_same_block(actual, expected, 1e-13, f"experts on {degrees}, etp {etp}")
    _, stats, grads = expected
    assert np.isclose(stats["load"].sum(), 1.0)
    assert np.isclose(stats["probability"].sum(), 1.0)
    assert (stats["load"] > 0).all(), "an expert that nobody chose proves nothing"
    assert all(np.abs(g).max() > 0 for g in grads.values())


def test_collectives_of_experts() -> None:
    """Two gathers and a scatter in the forward pass, their transposes in the backward.

    Dropout gathers the indices of the tokens in addition.
    """
    with jax.enable_x64(True):
        text = lowered(experts, 6, (("ep", 2),))[0].as_text()
    assert text.count("stablehlo.all_gather") == 3 + 1
    assert text.count("stablehlo.reduce_scatter") == 1 + 2
    assert text.count("stablehlo.all_to_all") == 0


def test_experts_in_bfloat16_stay_near_float32() -> None:
    """Routing, routing weights and sums over choices are in float32."""
    module = ExpertFeedForward(CHANNELS, routing=Routing(EXPERTS, 2))
    specs = {p: param_spec_of(v) for p, v in named_variables(module, Parameter)}
    params = initialize(specs, jax.random.key(1))
    x = jnp.asarray(draw((1, 6, 4, CHANNELS)))

    def forward(name: str) -> np.ndarray:
        context = Context(precision=Precision.of(name))
        cast = context.precision.cast

        @jax.jit
        def run(weights: Any, x: Any) -> Any:
            built: Any = with_values(module, {**weights, **_statistics()})
            return built(Field(x, context.rows(6)), context).data

        out = run({path: cast(w) for path, w in params.items()}, cast(x))
        assert out.dtype == context.precision.compute
        return np.asarray(out, np.float32)

    assert_close(forward("bfloat16"), forward("float32"), 2e-2, "bfloat16")


def test_experts_are_split_over_ep_and_their_units_over_tp() -> None:
    axes = ParallelDims(dp_shard=2, ep=2, tp=2, world_size=8).mesh_axes
    named = named_variables(experts(), Parameter)
    specs = {path: param_spec_of(variable) for path, variable in named}
    up, bias = specs["up"], specs["up_bias"]
    rules = ShardingRules(min_shard_size=1)
    assert rules.spec(up, axes) == P("ep", "dp_shard", "tp")
    assert rules.spec(specs["router"], axes) == P(None, None), "it is small"
    assert rules.spec(bias, axes) == P("ep", "tp")
    full = ShardingRules(DENSE_TENSOR_DIMS, min_shard_size=1)
    assert full.spec(up, axes) == P("ep", "dp_shard", None)
    assert not bias.is_small, "it is not packed with whole parameters"
    assert up.matrix_out is None, "no spectral norm"
