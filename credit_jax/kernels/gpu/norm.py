"""Layer normalization with one kernel for each pass, statistics in float32 or wider.

Only the input is saved for the backward pass, which recomputes the statistics. It also
adds the gradient of the residual connection around the normalized branch, so the
gradient of the input of a block is written once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.kernels.gpu.call import call_kernel, load, program_id, store
from credit_jax.ops import layer_norm as plain
from credit_jax.ops.custom_vjp import custom_vjp, match_vma
from credit_jax.ops.space_to_depth import next_power_of_2

# Number of values that a program processes at once; number of programs of the backward
# pass, each of which sums the gradients of scale and bias over its rows.
_VALUES = 4096
_PROGRAMS = 528
# Values of an array from which on the kernels are faster than XLA's: see
# docs/gpu_kernels.md.
MANY_VALUES = 2**23


def layer_norm_and_skip(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
    interpret: bool = False,
) -> tuple[Float[Array, "*batch channel"], Float[Array, "*batch channel"]]:
    """Returns the normalized array, and `x` itself; one kernel adds their gradients."""
    flat = x.reshape(-1, x.shape[-1])
    both: Any = _norm(*match_vma(flat, scale, bias), epsilon, interpret)
    normal, skip = both
    return normal.reshape(x.shape), skip.reshape(x.shape)


@partial(custom_vjp, nondiff_argnums=(3, 4))
def _norm(
    x: Array, scale: Array, bias: Array, epsilon: float, interpret: bool
) -> tuple[Array, Array]:
    # A power of two.
    rows = max(_VALUES // next_power_of_2(x.shape[1]), 1)
    (normal,) = call_kernel(
        partial(_forward_kernel, rows=rows, epsilon=epsilon),
        "layer_norm_forward",
        x,
        scale,
        bias,
        grid=(-(-len(x) // rows),),
        results=((x.shape, x.dtype),),
        interpret=interpret,
    )
    return normal, x


def _tangent(
    epsilon: float,
    interpret: bool,
    saved: tuple[Array, Array, Array],
    *tangents: Array,
) -> tuple[Array, Array]:
    del interpret

    def definition(x: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
        return plain(x, scale, bias, epsilon=epsilon), x

    return jax.jvp(definition, saved, tangents)[1]


@partial(_norm.defvjp, None, tangent=_tangent)
def _backward(
    epsilon: float,
    interpret: bool,
    saved: tuple[Array, Array, Array],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    x, scale, _ = saved
    rows = max(_VALUES // next_power_of_2(x.shape[1]), 1)
    turns = -(-len(x) // (rows * _PROGRAMS))
    programs = -(-len(x) // (rows * turns))
    wide = jnp.promote_types(x.dtype, jnp.float32)
    partial_sums = ((programs, 2, x.shape[1]), wide)
    by_x, sums = call_kernel(
        partial(_backward_kernel, rows=rows, turns=turns, epsilon=epsilon),
        "layer_norm_backward",
        x,
        scale,
        *cotangents,
        grid=(programs,),
        results=((x.shape, x.dtype), partial_sums),
        interpret=interpret,
    )
    by_scale, by_bias = sums.sum(0).astype(scale.dtype)
    return by_x, by_scale, by_bias


def _forward_kernel(
    x: Any, scale: Any, bias: Any, out: Any, *, rows: int, epsilon: float
) -> None:
    cells, mask = _cells(x, program_id(0), rows)
    normal, _ = _standardize(x, cells, mask, epsilon)
    shifted = normal * _vector(scale, normal) + _vector(bias, normal)
    store(out.at[cells], shifted.astype(out.dtype), mask=mask)


def _backward_kernel(
    x: Any,
    scale: Any,
    cotangent: Any,
    skip: Any,
    by_x: Any,
    sums: Any,
    *,
    rows: int,
    turns: int,
    epsilon: float,
) -> None:
    first = program_id(0) * turns
    count = x.shape[-1]

    def turn(index: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        cells, mask = _cells(x, first + index, rows)
        normal, inverse = _standardize(x, cells, mask, epsilon)
        grad = load(cotangent.at[cells], mask=mask, other=0.0).astype(normal.dtype)
        by_normal = grad * _vector(scale, normal)
        along = (by_normal * normal).sum(1, keepdims=True) / count
        mean = by_normal.sum(1, keepdims=True) / count
        # Less the changes that the normalization undoes: of the mean and of the scale.
        gradient = inverse * (by_normal - mean - normal * along)
        gradient += load(skip.at[cells], mask=mask, other=0.0).astype(normal.dtype)
        store(by_x.at[cells], gradient.astype(by_x.dtype), mask=mask)
        by_scale, by_bias = totals
        return by_scale + (grad * normal).sum(0), by_bias + grad.sum(0)

    zeros = jnp.zeros(next_power_of_2(x.shape[1]), sums.dtype)
    totals = lax.fori_loop(0, turns, turn, (zeros, zeros))
    channel = lax.iota(jnp.int32, next_power_of_2(x.shape[1]))
    for which, total in enumerate(totals):
        origin = sums.at[program_id(0), which, channel]
        store(origin, total, mask=channel < count)


def _standardize(
    x: Any, cells: Any, mask: Array, epsilon: float
) -> tuple[Array, Array]:
    """Returns rows with mean 0 and variance 1, 0 where masked, and 1 / deviation."""
    values = load(x.at[cells], mask=mask, other=0.0)
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    count = x.shape[-1]
    centered = jnp.where(mask, values - values.sum(1, keepdims=True) / count, 0.0)
    variance = (centered * centered).sum(1, keepdims=True) / count
    inverse = lax.rsqrt(variance + epsilon)
    return centered * inverse, inverse


def _cells(x: Any, block: Array, rows: int) -> tuple[Any, Array]:
    """Returns indices of a block of rows, and a mask of those inside of the array."""
    row = block * rows + lax.iota(jnp.int32, rows)
    channel = lax.iota(jnp.int32, next_power_of_2(x.shape[1]))
    mask = (row < x.shape[0])[:, None] & (channel < x.shape[1])[None, :]
    return (row[:, None], channel[None, :]), mask


def _vector(ref: Any, like: Array) -> Array:
    """Loads a vector of channels as (1, channel)."""
    channel = lax.iota(jnp.int32, next_power_of_2(ref.shape[0]))
    values = load(ref.at[channel], mask=channel < ref.shape[0], other=0.0)
    return values.astype(like.dtype)[None, :]
