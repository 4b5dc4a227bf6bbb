"""Floating-point operations of a program: its matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

from credit_jax.models.model_def import ModelDef
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS
from credit_jax.nn.noise import Noise


def count_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Operations of one call; see `flops_of`."""
    return flops_of(jax.make_jaxpr(function)(*arguments))


def gradient_flops(model_def: ModelDef, samples: int = 1) -> float:
    """Operations of the gradient of a model by its weights, on one device.

    Nothing is recomputed; a training step has hardly any more.

    Args:
        model_def: the model; it is traced, not compiled.
        samples: of the batch.
    """
    shaped = jax.ShapeDtypeStruct
    weights = {p: shaped(d.shape, d.dtype) for p, d in model_def.param_specs.items()}
    specs = model_def.network_inputs.items()
    inputs = {k: shaped(s.shape(samples), jnp.float32) for k, s in specs}
    key = jax.random.key(0)
    state = jax.eval_shape(model_def.init_model_state, key)

    def forward(weights: Any, inputs: Any, batch_stats: Any, key: Any) -> Any:
        context = Context(noise=Noise(key))
        return model_def.apply(weights, inputs, context, batch_stats).sum()

    return count_flops(jax.grad(forward), weights, inputs, state[BATCH_STATS], key)


def flops_of(program: Any) -> float:
    """Operations of one call on one device, a multiplication and an addition being two.

    Recomputed operations count again, those of loops once per iteration, and unused
    ones (such as the gradient by the data) not at all, because XLA removes them. The
    count is that of the jaxpr, the same on every backend. Elementwise operations are
    left out, as usual in model FLOPs utilization. A kernel tells its own operations.

    Args:
        program: a closed jaxpr, such as `jitted.trace(...).jaxpr`.

    Raises:
        ValueError: a loop whose length is not known.
    """
    jaxpr = program.jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return _of(needed)


def _of(jaxpr: Any) -> float:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        depth = math.prod(shape[d] for d in contracted)
        return 2.0 * depth * math.prod(equation.outvars[0].aval.shape)
    if name == "ragged_dot_general":
        # Every row times one kernel, or, in the gradient by these, every row once.
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
    inner = [_of(jaxpr) for jaxpr in _inner(params)]
    if name == "while" and any(inner):
        raise ValueError(
            "a while loop holds matrix products; use scan, which has a length"
        )
    if name == "cond":
        return max(inner)
    return sum(inner) * (params["length"] if name == "scan" else 1)


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The programs within an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
