"""WXFormer against serial CREDIT with the same weights: values and all gradients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.models.registry import build
from credit_jax.nn.context import Context
from tests.models.crossformer.cases import CASES
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
)

# Each case is one program: in float64, where every array is compared, or in float32,
# with the implementations for CPU or GPU, or the plain ones.


@pytest.mark.slow(but=["patches"])
@pytest.mark.parametrize("name", ["uneven", "patches"])
def test_equals_credit(credit: Any, name: str) -> None:
    assert_equals_credit(credit, CASES[name], name)


def test_plain_definitions_equal_credit(credit: Any) -> None:
    """TPUs run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, CASES["plain"], "plain", "xla")


@pytest.mark.slow
def test_kernels_of_gpus_equal_credit(credit: Any) -> None:
    """In interpret mode; windows of 4 x 4 and 2 x 2, long and short."""
    block = {**CASES["uneven"], "depth": [1, 0, 0, 0]}
    assert_equals_credit(credit, block, "uneven, kernels of GPUs", "gpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["earth", "frames"])
def test_equals_credit_array_by_array_in_float64(credit: Any, name: str) -> None:
    assert_equals_credit_in_float64(credit, CASES[name], name)


def test_training_forward_iterates_once_like_credit(credit: Any) -> None:
    assert_training_forward_equals_credit(credit, CASES["earth"])


@pytest.mark.slow
def test_dropout_noise_is_scaled() -> None:
    """The mean over keys of the output with dropout is near the one without."""
    block = {**CASES["plain"], "attn_dropout": 0.1, "ff_dropout": 0.1}
    model_def = build(block)
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (1, 7, 1, 32, 32))

    @jax.jit
    def forward(key: Any) -> Any:
        return model_def.apply(params, {"x": x}, Context(key=key))

    still = jax.jit(lambda: model_def.apply(params, {"x": x}, Context()))()
    noisy = np.stack([forward(key) for key in jax.random.split(jax.random.key(1), 32)])
    spread = float(noisy.std(0).mean())
    shift = float(np.abs(noisy.mean(0) - still).mean())
    print(f"dropout: spread {spread:.3f}, shift of the mean {shift:.3f}")
    assert spread > 1e-3, "dropout must change the output"
    assert shift < spread, f"mean moved by {shift:.3f} with a spread of {spread:.3f}"
