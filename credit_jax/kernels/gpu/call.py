"""Calls of kernels, named so that a compiled program tells what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array

# Groups of 32 threads of a program.
_WARPS = 8
_FLOPS = re.compile(r"_(\d+)_flops\b")


def call_kernel(
    kernel: Callable[..., None],
    name: str,
    *arrays: Array,
    grid: tuple[int, ...],
    results: Sequence[tuple[tuple[int, ...], Any]],
    flops: int = 0,
    num_stages: int = 1,
    interpret: bool = False,
) -> Sequence[Array]:
    """Runs a Pallas kernel on whole arrays, which vary over equal mesh axes.

    Args:
        kernel: of refs of the arrays and the results.
        name: of the kernel; that in a compiled program ends in its operations.
        *arrays: read by the kernel.
        grid: numbers of programs.
        results: shapes and dtypes.
        flops: operations of its products, those with padding left out.
        num_stages: turns of a loop whose reads are under way at once.
        interpret: run the kernel as XLA operations, on any device.
    """
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
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=num_stages),
        cost_estimate=pl.CostEstimate(
            flops=flops, transcendentals=0, bytes_accessed=moved
        ),
    )(*arrays)


def named_flops(op_name: str) -> int:
    """Operations of a kernel of `call_kernel`, from its named scopes in a program.

    >>> named_flops("jit(step)/window_attention_forward_1200_flops/pallas_call")
    1200
    """
    found = _FLOPS.findall(op_name)
    return int(found[-1]) if found else 0
