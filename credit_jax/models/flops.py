"""Counts floating-point operations (FLOPs) of the matrix products of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

from credit_jax.models.model_def import ModelDef
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS


def count_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the FLOPs of one call of a function; see `flops_of`."""
    return flops_of(jax.make_jaxpr(function)(*arguments))


def gradient_flops(model_def: ModelDef) -> float:
    """Returns the FLOPs of the gradient of one sample with respect to the weights."""
    # The count is for one device without rematerialization; the remaining operations of
    # a training step are negligible.
    shaped = jax.ShapeDtypeStruct
    weights = {p: shaped(d.shape, d.dtype) for p, d in model_def.param_specs.items()}
    specs = model_def.network_inputs.items()
    inputs = {k: shaped(s.shape(1), jnp.float32) for k, s in specs}
    key = jax.random.key(0)
    batch_stats = model_def.model_state_shapes[BATCH_STATS]

    def forward(weights: Any, inputs: Any, batch_stats: Any, key: Any) -> Any:
        context = Context(noise=Noise(key))
        return model_def.apply(weights, inputs, context, batch_stats).sum()

    return count_flops(jax.grad(forward), weights, inputs, batch_stats, key)


def flops_of(program: Any) -> float:
    """Returns the FLOPs of one call on one device; a multiply-add counts as two."""
    # Matrix products and convolutions are counted in the jaxpr, so the count does not
    # depend on the backend. Elementwise operations do not count, as usual in model
    # FLOPs utilization. Recomputed operations count again, those of a scan once per
    # iteration, and unused operations (such as the gradient of the data) do not count,
    # because XLA removes them. A Pallas kernel counts by its cost estimate.
    return sum(map(equation_flops, needed_part(program.jaxpr).eqns))


def needed_part(jaxpr: Any) -> Any:
    """Returns a jaxpr without the equations that none of its results needs."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def equation_flops(equation: Any) -> float:
    """Returns the FLOPs of one equation, those of programs within it included."""
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        depth = math.prod(shape[d] for d in contracted)
        return 2.0 * depth * math.prod(equation.outvars[0].aval.shape)
    if name == "ragged_dot_general":
        # Each row is multiplied by one kernel, also in the gradient of the kernels.
        rows, columns = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        return 2.0 * math.prod(rows) * columns[-1]
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out_dim = params["dimension_numbers"].rhs_spec[0]
        # Dilation, as in the gradient of a strided convolution, inserts zeros.
        zeros = math.prod(params["lhs_dilation"])
        depth = math.prod(kernel) / kernel[out_dim] / zeros
        return 2.0 * depth * math.prod(equation.outvars[0].aval.shape)
    if name == "pallas_call":
        return float(params["cost_estimate"].flops)
    inner = [sum(map(equation_flops, jaxpr.eqns)) for jaxpr in inner_jaxprs(params)]
    if name == "while" and any(inner):
        raise ValueError(
            "a while loop holds matrix products; use scan, which has a length"
        )
    if name == "cond":
        return max(inner)
    return sum(inner) * (params["length"] if name == "scan" else 1)


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yields the jaxprs within the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
