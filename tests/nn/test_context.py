"""Stacked blocks run by the context of a forward pass."""

from functools import cache

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from credit_jax.kernels import use_implementation
from credit_jax.models.parallel_model import build_parallel_model
from tests.models.crossformer.cases import CASES
from tests.support import make_mesh

DEPTH = 2
BLOCK = {**CASES["plain"], "depth": [0, 0, DEPTH, 0]}


@cache
def unrolled(implementation, unroll_blocks):
    """Returns the unroll factor of the loop over the blocks."""
    model = build_parallel_model(BLOCK, make_mesh(), unroll_blocks=unroll_blocks)
    params, model_state = jax.eval_shape(model.init, jax.random.key(0))
    inputs = {
        name: jax.ShapeDtypeStruct(spec.shape(1), "float32")
        for name, spec in model.model_def.inputs.items()
    }
    with use_implementation(implementation):
        traced = jax.make_jaxpr(model.apply)(params, model_state, inputs)
    (loop,) = _loops(traced.jaxpr)
    assert loop.params["length"] == DEPTH
    return loop.params["unroll"]


def _loops(jaxpr):
    """Returns every `scan` of a program, nested ones included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        else:
            for inner in jaxprs_in_params(equation.params):
                yield from _loops(inner)


@pytest.mark.parametrize(
    ("implementation", "unroll_blocks", "expected"),
    [("gpu", DEPTH, DEPTH), ("gpu", DEPTH - 1, 1), ("xla", DEPTH, 1)],
)
def test_few_blocks_are_no_loop_on_gpus(implementation, unroll_blocks, expected):
    assert unrolled(implementation, unroll_blocks) == expected
