"""All that kernels take of Pallas Triton, products of tiles, and calls of kernels.

JAX announces the removal of this backend. Nothing else imports it, so that kernels move
to another one by a change of this file, and without it all operations have their plain
definitions. Names of kernels in compiled programs end in their FLOPs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

pl: Any
triton: Any
try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton
except ImportError:
    pl = triton = None

# JAX says so from 0.11 on whenever a kernel is lowered; users can do nothing about it.
_DEPRECATED = "The Pallas Triton backend is deprecated"
warnings.filterwarnings("ignore", _DEPRECATED, DeprecationWarning)

# Pallas' position in the grid and slices, and loads and stores of Triton.
program_id: Any = getattr(pl, "program_id", None)
ds: Any = getattr(pl, "ds", None)
load: Any = getattr(triton, "load", None)
store: Any = getattr(triton, "store", None)


def is_available() -> bool:
    """Whether the installed JAX compiles the kernels."""
    return triton is not None


def call_kernel(
    kernel: Callable[..., None],
    name: str,
    *arrays: Array,
    grid: tuple[int, ...],
    results: Sequence[tuple[tuple[int, ...], Any]],
    flops: int = 0,
    num_warps: int = 8,
    interpret: bool = False,
) -> Sequence[Array]:
    """Runs a Pallas kernel of the refs of arrays, then of results (shape, dtype)."""
    varying = jax.typeof(arrays[0]).manual_axis_type
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying)
        for shape, dtype in results
    ]
    moved = sum(a.size * a.dtype.itemsize for a in (*arrays, *shapes))
    return pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=grid,
        name=f"{name}_{flops}_flops",
        interpret=interpret,
        # A loop whose loads ran ahead of its products by three stages gave other bits
        # now and then on an H200.
        compiler_params=triton.CompilerParams(num_warps=num_warps, num_stages=1),
        cost_estimate=pl.CostEstimate(
            flops=flops, transcendentals=0, bytes_accessed=moved
        ),
    )(*arrays)


def dot(left: Array, right: Array) -> Array:
    """Returns `left @ right`, summed in float32 or wider, without TF32 rounding."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    precision = lax.Precision.HIGHEST if left.dtype == wide else None
    return jnp.dot(left, right, precision=precision, preferred_element_type=wide)
