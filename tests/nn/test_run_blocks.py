"""Stacked blocks of a forward pass."""

from functools import cache

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from credit_jax.kernels import use_implementation
from credit_jax.models.parallel_model import build_parallel_model
from tests.models.cases import CASES
from tests.support import make_mesh

DEPTH = 2
BLOCK = {**CASES["wxformer plain"].block, "depth": [0, 0, DEPTH, 0]}


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
    assert all(loop.params["length"] == DEPTH for loop in loops)
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
    [("gpu", DEPTH, 0), ("gpu", DEPTH - 1, 1), ("xla", DEPTH, 1)],
)
def test_few_blocks_are_no_loop_on_gpus(implementation, unroll_blocks, expected):
    assert num_loops(implementation, unroll_blocks) == expected
