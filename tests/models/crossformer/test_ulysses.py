"""Transformer blocks with dropout on meshes; Ulysses attention against windows."""

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
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.models.crossformer.blocks import TransformerBlock
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import Parameter, named_variables, param_spec_of
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.domain.attention import HeadExchange, attention_layout
from credit_jax.parallel.domain.windows import partition, window_grid
from credit_jax.parallel.mesh.device_mesh import mesh_of_degrees
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.models.cases import CASES
from tests.models.parity import assert_joint, mesh_of
from tests.support import assert_close, assert_trees_close, dealt
from tests.support.gradients import draw
from tests.support.sharded import output_and_gradients, with_values

CHANNELS, COLUMNS, BATCH = 16, 6, 4
# Windows of 2 rows and of 3: 6 bands and 4 groups of 12 rows, 9 and 6 of 18.
SHORT, LONG, DIM_HEAD = 2, 3, 4
BLOCK = CASES["wxformer earth"].block


def block() -> nnx.Module:
    rates = {"attn_dropout": 0.3, "ff_dropout": 0.2}
    made = TransformerBlock(CHANNELS, SHORT, LONG, dim_head=DIM_HEAD, **rates)
    return apply_tensor_parallel(made)


@cache
def lowered(
    rows: int,
    degrees: tuple[tuple[str, int], ...],
    ulysses: int | None = None,
    drops: bool = True,
    implementation: str = "xla",
) -> Any:
    """Returns (program, arguments) of a block on a mesh."""
    sizes = dict(degrees)
    count = math.prod(sizes.values())
    dims = ParallelDims(**sizes, ulysses_degree=ulysses, world_size=count)
    axes, module = dims.mesh_axes, block()
    param_specs = {p: param_spec_of(v) for p, v in named_variables(module, Parameter)}
    specs = ShardingRules().specs(param_specs, axes)

    def forward(params: Any, x: Any, key: Any) -> Any:
        built: Any = with_values(block(), params)
        context = Context(
            axes=axes,
            precision=Precision.of("float64"),
            key=key if drops else None,
            first_sample=axis_index(axes.data[0]) if axes.num_data > 1 else 0,
            sample_stride=axes.num_data,
        )
        field = Field(x, context.rows(rows))
        out = reshard(built(field, context), field.layout)
        return jnp.where(out.mask(), out.data, 0.0)

    mesh = mesh_of_degrees(dims.axis_degrees, jax.devices()[: dims.world_size])
    program = output_and_gradients(forward, mesh, axes, specs)
    params = jax.jit(lambda key: initialize(param_specs, key))(jax.random.key(1))
    params = {path: np.asarray(w, np.float64) for path, w in params.items()}
    order = dealt(BATCH, axes.num_data)
    x = draw((BATCH, rows, COLUMNS, CHANNELS))[order].astype(np.float64)
    x = np.pad(x, ((0, 0), (0, -rows % axes.num_domain), (0, 0), (0, 0)))
    with use_implementation(implementation):
        return program.lower(params, x, jax.random.key(0)), (params, x)


@cache
def compiled(*case: Any) -> Any:
    program, args = lowered(*case)
    return program.compile(), args


def run(rows: int, degrees: dict[str, int], *options: Any, key: int = 11) -> Any:
    with jax.enable_x64(True):
        program, args = compiled(rows, tuple(degrees.items()), *options)
        out, grads = jax.device_get(program(*args, jax.random.key(key)))
    order = dealt(BATCH, degrees.get("dp_replicate", 1))
    return out[np.argsort(order), :rows], grads


def test_every_sample_has_its_own_mask_and_evaluation_has_none() -> None:
    out, _ = run(12, {})
    for other in (run(12, {}, None, False), run(12, {}, key=12)):
        assert np.abs(out - other[0]).max() > 0.1, "nothing is dropped, or alike"
    assert np.array_equal(out, run(12, {})[0]), "the same key gives another mask"


def assert_same_block(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Asserts equal outputs, and gradients of all weights that have one."""
    (out, grads), (expected_out, expected_grads) = actual, expected
    assert_close(out, expected_out, bound, f"{what}: forward")
    largest = max(np.linalg.norm(g) for g in expected_grads.values())
    for kind in ("short", "long"):
        # A number added to all logits: its gradient is zero but for rounding.
        bias = grads.pop(f"{kind}_attention/position_bias/linear_3/bias")
        assert np.linalg.norm(bias) < 1e-13 * largest, kind
    expected_grads = {path: expected_grads[path] for path in grads}
    assert_trees_close(grads, expected_grads, 1e-13, f"{what}: gradients")
    assert_joint(grads, expected_grads, bound or 1e-15, what)


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
def test_equals_whole_windows(
    rows: int, degrees: dict[str, int], ulysses: int | None, drops: bool
) -> None:
    """Groups, bitwise, on the same mesh; windows on one device; with dropout."""
    what = f"{rows} rows on {degrees}, groups of {ulysses}"
    actual = run(rows, degrees, ulysses, drops)
    expected = run(rows, degrees if ulysses else {}, None, drops)
    assert_same_block(actual, expected, 0.0 if ulysses else 1e-13, what)


@pytest.mark.slow
def test_kernels_of_cpus() -> None:
    """Their LayerNorm computes means by a matrix-vector product.

    XLA on CPU sums the rows after the last full vector register in another order, and
    their number depends on the number of rows.
    """
    out, expected = (run(18, {"domain": 8}, n, True, "cpu")[0] for n in (4, None))
    assert_close(out, expected, 1e-15, "kernels of CPUs: forward")


def test_two_exchanges_an_attention() -> None:
    """Each pass exchanges heads for rows and back; no other rows move.

    If the group is as large as the axis, long windows need the same rows as short ones.
    Hence only the four exchanges of two attentions and their transposes remain.
    """
    with jax.enable_x64(True):
        text = lowered(12, (("domain", 4),), 4, True)[0].as_text()
        optimized = compiled(12, (("domain", 2), ("tp", 2)), 2, True)[0].as_text()
    assert text.count("stablehlo.all_to_all") == 8
    assert text.count("stablehlo.collective_permute") == 0
    assert len(re.findall(r" all-to-all(?:-start)?\(", optimized)) == 8
    assert not re.findall(r" collective-permute(?:-start)?\(", optimized)


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("degree", [2, 4])
def test_rows_and_heads_change_places(kind: Any, degree: int) -> None:
    """The round trip is bitwise; a shard has whole windows of every fourth head."""
    mesh = mesh_of("domain4")
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
        window, token = np.indices((grid.windows, grid.tokens))
        points = seen.data[..., 0, 0, 0].reshape(-1)[
            grid.locate(jnp.asarray(window), jnp.asarray(token))
        ]
        flat = seen.like(seen.data.reshape(*seen.data.shape[:3], -1))
        return back, points[None], partition(flat, kind, LONG)[..., 0]

    split = P(None, "domain")
    run = jax.shard_map(
        body, mesh=mesh, in_specs=split, out_specs=(split, P("domain"), P("domain"))
    )
    back, points, windows = jax.jit(run)(x)
    assert np.array_equal(back[:, :18], x[:, :18])
    assert np.array_equal(points, windows), "kernels of GPUs see other windows"
    numbers = np.asarray(windows)[: 4 if degree == 4 else 2].reshape(-1)
    assert np.isin(x[0, :18, :, 0, :: 4 // degree, 0], windows).all()
    assert len(numbers) == len(np.unique(numbers))


def test_types_hold_on_the_kernels_of_gpus() -> None:
    """One kernel attends to all rows of the group."""
    section = {**BLOCK, "depth": [1, 0, 0, 0]}
    mesh = mesh_of("domain2")
    model = build_parallel_model(section, mesh, ulysses_degree=2)
    x = jax.ShapeDtypeStruct((1, 7, 1, 30, 32), jnp.float32)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    with use_implementation("gpu"):
        y = jax.eval_shape(lambda w, x: model.apply(*w, {"x": x}), weights, x)
    assert y.shape == (1, 6, 1, 30, 32)


@pytest.mark.slow
def test_a_whole_model() -> None:
    """Embeddings, decoder and skips read rows from the even layout of the groups."""
    x = jnp.asarray(draw((1, 7, 1, 30, 32)))
    mesh = mesh_of("domain2")

    def forecast(degree: int | None) -> np.ndarray:
        model = build_parallel_model(BLOCK, mesh, ulysses_degree=degree)
        return np.asarray(model.apply(*model.init(jax.random.key(0)), {"x": x}))

    assert_close(forecast(2), forecast(None), 1e-6, "wxformer in groups of 2")
