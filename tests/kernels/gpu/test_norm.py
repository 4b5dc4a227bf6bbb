"""Fused normalization kernels in interpret mode against the plain definition."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import ops
from credit_jax.kernels.gpu import norm
from tests.support.errors import relative_error
from tests.support.gradients import assert_same, draw, jax_values

# Partial blocks of rows, channels not a power of two, several iterations per program.
CASES = {"ragged": (2, 350, 40), "many rows": (1, 1090, 256)}
PROGRAMS = 16


def _plain(x: Any, scale: Any, bias: Any) -> Any:
    return jnp.stack([ops.layer_norm(x, scale, bias), 2 * x])


def _kernel(x: Any, scale: Any, bias: Any) -> Any:
    normal, skip = norm.layer_norm_and_skip(x, scale, bias, interpret=True)
    return jnp.stack([normal, 2 * skip])


def _arrays(name: str) -> list[Any]:
    *rows, channels = CASES[name]
    x = 3 * draw((*rows, channels)) + 1
    return [x, draw((channels,), 1), draw((channels,), 2)]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_plain_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "_PROGRAMS", PROGRAMS)
    kernel, plain = (jax_values(f, *_arrays(name)) for f in (_kernel, _plain))
    assert_same(kernel, plain, name, value=1e-6, gradient=1e-6)


def test_bfloat16_is_as_near_to_float32_as_the_plain_definition() -> None:
    narrow = [np.asarray(jnp.asarray(a, jnp.bfloat16)) for a in _arrays("ragged")]
    value, gradients = jax_values(_plain, *(np.asarray(a, np.float32) for a in narrow))
    errors = []
    for function in (_kernel, _plain):
        ours, by_array = jax_values(function, *narrow)
        pairs = zip((ours, *by_array), (value, *gradients), strict=True)
        errors.append([relative_error(np.asarray(a, np.float32), e) for a, e in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.01 * theirs, f"{errors[0]}, plain {errors[1]}"


def test_layer_norm_is_the_first_of_both() -> None:
    arrays = _arrays("ragged")
    ours = jax_values(partial(norm.layer_norm, interpret=True), *arrays)
    assert_same(ours, jax_values(ops.layer_norm, *arrays), "alone", gradient=1e-6)
