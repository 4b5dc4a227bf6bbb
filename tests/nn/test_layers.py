"""Dropout in attention and feed-forward: the same mask on every mesh."""

from functools import lru_cache

import jax
import numpy as np
import pytest

from credit_jax.models.crossformer.blocks import TransformerBlock
from credit_jax.nn.context import Context
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
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
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
