"""Layers, runs of blocks, and noise."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.models.crossformer.blocks import TransformerBlock
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.packed_matrices import matrix_families
from credit_jax.nn.parameters import (
    Parameter,
    named_variables,
    param_spec_of,
    stack_blocks,
)
from credit_jax.nn.run_blocks import scan_blocks
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.mesh.device_mesh import DOMAIN, MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from tests.models.cases import CASES
from tests.support import assert_close, assert_trees_close, dealt, make_mesh
from tests.support.gradients import draw
from tests.support.sharded import output_and_gradients, with_values

ROWS, COLUMNS, CHANNELS, BATCH, DEPTH, WINDOW = 12, 4, 32, 4, 2, 2
KEY = jax.random.key(11)


def blocks():
    stacked = stack_blocks(
        lambda: TransformerBlock(
            CHANNELS, WINDOW, WINDOW, dim_head=16, attn_dropout=0.3, ff_dropout=0.2
        ),
        DEPTH,
    )
    return apply_tensor_parallel(stacked)


def param_specs():
    return {path: param_spec_of(v) for path, v in named_variables(blocks(), Parameter)}


@lru_cache
def parameters():
    return jax.jit(lambda key: initialize(param_specs(), key))(jax.random.key(1))


# A number added to all logits of a softmax: its gradient is zero but for rounding.
WITHOUT_EFFECT = (
    "short_attention/position_bias/linear_3/bias",
    "long_attention/position_bias/linear_3/bias",
)


@lru_cache
def program(mesh, dropout=True):
    """Returns output and weight gradients of stacked transformer blocks in training."""
    axes = MeshAxes.from_mesh(mesh)
    specs = ShardingRules().specs(param_specs(), axes)

    def forward(params, x, key):
        module = with_values(blocks(), params)
        first = axis_index(axes.data[0]) if axes.num_data > 1 else 0
        context = Context(
            axes=axes,
            key=key if dropout else None,
            first_sample=first,
            sample_stride=axes.num_data,
        )
        layout = context.rows(ROWS)
        field = reshard(Field(x, layout), window_layout(layout, ROWS, WINDOW))
        return reshard(scan_blocks(context, module, field, DEPTH), layout).data

    return output_and_gradients(forward, mesh, axes, specs)


def run_on(mesh, dropout=True, key=KEY):
    order = dealt(BATCH, MeshAxes.from_mesh(mesh).num_data)
    x = draw((BATCH, ROWS, COLUMNS, CHANNELS))[order]
    out, grads = program(mesh, dropout)(parameters(), x, key)
    return np.asarray(out)[np.argsort(order)], grads


@lru_cache
def on_one_device():
    return run_on(make_mesh())


@pytest.mark.slow(but=["{'dp': 2, 'tp': 2, 'domain': 2}"])
@pytest.mark.parametrize(
    "degrees", [{"domain": 4}, {"dp": 2, "tp": 2, "domain": 2}], ids=str
)
def test_the_mask_is_the_same_on_every_mesh(degrees):
    """Also in strips on 4 shards, which do not divide 6 bands of windows."""
    out, grads = run_on(make_mesh(**degrees))
    expected, expected_grads = on_one_device()
    largest = max(np.linalg.norm(g) for g in expected_grads.values())
    for path in WITHOUT_EFFECT:
        assert np.linalg.norm(grads.pop(path)) < 1e-6 * largest, path
    expected_grads = {path: expected_grads[path] for path in grads}
    assert_close(out, expected, 1e-6, f"{degrees}, output")
    assert_trees_close(grads, expected_grads, 1e-5, f"{degrees}, gradients")


def test_every_sample_has_its_own_mask_and_evaluation_has_none():
    out, _ = on_one_device()
    without, _ = run_on(make_mesh(), dropout=False)
    assert np.abs(out - without).max() > 0.1, "nothing is dropped"
    again, _ = run_on(make_mesh())
    assert np.array_equal(out, again), "the same key gives another mask"
    other, _ = run_on(make_mesh(), key=jax.random.key(12))
    assert np.abs(out - other).max() > 0.1, "the key does not matter"


SQUARE = ParamSpec((8, 8), (None, None), matrix_out=(1,))
PATHS = "abcde"
SPECS = {path: P("dp") if path in "bd" else P(None, "dp") for path in PATHS}


def _families(specs):
    families = matrix_families(dict.fromkeys(PATHS, SQUARE), specs)
    return ["".join(p for group in f for p in group.specs) for f in families]


def test_families_are_sharded_alike():
    assert _families(None) == ["abcde"]
    assert _families(SPECS) == ["ace", "bd"]


DEPTH_RUN_BLOCKS = 2
BLOCK = {**CASES["wxformer plain"].block, "depth": [0, 0, DEPTH_RUN_BLOCKS, 0]}


@cache
def num_loops(implementation, unroll_blocks):
    """Returns the number of loops over the blocks in a forward pass."""
    model = build_parallel_model(BLOCK, make_mesh(), unroll_blocks=unroll_blocks)
    params, model_state = jax.eval_shape(model.init, jax.random.key(0))
    inputs = {
        name: jax.ShapeDtypeStruct(spec.shape(1), "float32")
        for name, spec in model.model_def.inputs.items()
    }
    with use_implementation(implementation):
        traced = jax.make_jaxpr(model.apply)(params, model_state, inputs)
    loops = list(_loops(traced.jaxpr))
    assert all(loop.params["length"] == DEPTH_RUN_BLOCKS for loop in loops)
    return len(loops)


def _loops(jaxpr):
    """Returns every `scan` of a program, nested ones included, but not of kernels."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        elif equation.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(equation.params):
                yield from _loops(inner)


@pytest.mark.parametrize(
    ("implementation", "unroll_blocks", "expected"),
    [
        ("gpu", DEPTH_RUN_BLOCKS, 0),
        ("gpu", DEPTH_RUN_BLOCKS - 1, 1),
        ("xla", DEPTH_RUN_BLOCKS, 1),
    ],
)
def test_few_blocks_are_no_loop_on_gpus(implementation, unroll_blocks, expected):
    assert num_loops(implementation, unroll_blocks) == expected


ROWS_NOISE = 16


def _run(domain: int) -> list[np.ndarray]:
    """Returns a field, a vector, and the gradient of a replicated scale."""
    mesh = make_mesh(domain=domain)
    axes = MeshAxes.from_mesh(mesh)
    x = np.random.default_rng(0).normal(size=(2, ROWS_NOISE, 4, 3)).astype("f4")
    spec = PartitionSpec(None, DOMAIN if domain > 1 else None)

    def body(x: Any, key: Any) -> Any:
        context = Context(axes=axes, noise=Noise(key))
        field = Field(x, context.rows(ROWS_NOISE))
        noise = context.normal_field("field", field)

        def total(scale: Any) -> Any:
            return (noise * scale[None, None, None] * x).sum()

        gradient = jax.grad(total)(jnp.ones(3))
        return noise, context.normal_vector("vector", 2, 5), gradient

    whole = PartitionSpec()
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(spec, whole), out_specs=(spec, whole, whole)
    )
    return jax.device_get(jax.jit(mapped)(jnp.asarray(x), jax.random.key(3)))


@pytest.mark.slow
def test_draws_by_key_do_not_depend_on_the_place_in_the_batch() -> None:
    """Those of three keys, in any order, are those of each alone with its key."""
    keys = jax.random.split(jax.random.key(3), 3)

    def draws(order: list[int]) -> list[np.ndarray]:
        context = Context(noise=Noise(keys[np.array(order)])).fold_in(5)
        field = Field(
            jnp.zeros((len(order), ROWS_NOISE, 4, 3)), context.rows(ROWS_NOISE)
        )
        count = len(order)
        drawn = (
            context.normal_field("normal", field),
            context.uniform_field("uniform", field),
            context.normal_vector("vector", count, 5),
            context.uniform_integer("integer", count, 1000),
        )
        return [np.asarray(own) for own in drawn]

    together, turned = draws([0, 1, 2]), draws([2, 0, 1])
    for place in range(3):
        alone = draws([place])
        for many, other, one in zip(together, turned, alone, strict=True):
            np.testing.assert_array_equal(many[place], one[0])
            np.testing.assert_array_equal(other[(place + 1) % 3], one[0])
    assert all(len(np.unique(own, axis=0)) == 3 for own in together)
    single = Context(noise=Noise(keys[1])).fold_in(5)
    np.testing.assert_array_equal(
        single.normal_vector("vector", 1, 5)[0], together[2][1]
    )


@pytest.mark.parametrize("domain", [2, 4])
def test_draws_and_gradients_are_those_of_one_device(domain: int) -> None:
    field, vector, gradient = _run(domain)
    one = _run(1)
    np.testing.assert_array_equal(field, one[0])
    np.testing.assert_array_equal(vector, one[1])
    assert_close(gradient, one[2], 1e-6, "gradient of the scale")
