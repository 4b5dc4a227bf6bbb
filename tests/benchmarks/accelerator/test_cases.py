"""The table of operations with GPU kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator.cases import cases
from credit_jax import kernels

# An operation of `kernels.gpu` that is no case of its own, but part of
# `layer_norm_and_skip`.
WITHIN = {"layer_norm"}


def test_names_are_unique_and_operations_those_of_the_models() -> None:
    for size in ("025deg", "small"):
        names = [case.name for case in cases(size)]
        assert len(set(names)) == len(names)
    operations = {case.operation for case in cases("025deg")}
    assert operations == {case.operation for case in cases("small")}
    for operation in operations | WITHIN:
        assert callable(getattr(kernels, operation))


@pytest.mark.slow(but=["small"])
@pytest.mark.parametrize("size", ["025deg", "small"])
def test_kernels_have_the_types_of_their_definitions(size: Any) -> None:
    for case in cases(size):
        for dtype in case.dtypes:
            arrays = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in case.shapes]
            found, expected, compiled = (
                jax.eval_shape(case.with_gradients(function), *arrays)
                for function in (case.interpreted, case.definition, case.kernel)
            )
            assert found == expected == compiled, f"{case.name}, {dtype}"


def test_arrays_are_equal_in_every_run_and_have_the_shapes() -> None:
    for case in cases("small"):
        first, again = (case.arrays(seed=3, dtype=jnp.bfloat16) for _ in range(2))
        assert tuple(array.shape for array in first) == case.shapes
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
