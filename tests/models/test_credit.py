"""Every model beside serial CREDIT with the same weights: the checks of `CASES`."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import MODELS
from tests.models.cases import CASES, checks
from tests.models.parity import (
    FLOAT64,
    GRADIENT,
    assert_equals_credit,
    assert_samples_equal_credit,
    assert_training_forward_equals_credit,
)
from tests.state_dict.round_trip import assert_round_trip
from tests.support import assert_close

pytestmark = [
    pytest.mark.reference,
    # Of cases whose keys have no effect in CREDIT either.
    pytest.mark.filterwarnings("ignore::credit_jax.config.base.ConfigWarning"),
]


@checks("float32", "float64")
def test_equals_credit(credit: Any, block: dict[str, Any], name: str, check: str):
    """Forward, and the gradients by every parameter and every input.

    Each check is one program: in float64, where every array is compared, or in float32,
    with the implementations for CPU or GPU, or the plain ones that accelerators run.
    """
    dtype, _, implementation = check.partition("_")
    given = implementation or "cpu"
    seed = CASES[name].seed
    ours, theirs = assert_equals_credit(
        credit, block, name, given, dtype=dtype, seed=seed
    )
    gates = [key for key in theirs if ".attention." in key]
    if block["type"] == "crossformer":
        assert bool(gates) == bool(block.get("attention_type"))
        for key in gates:
            assert_close(ours[key], theirs[key], GRADIENT, f"{name}: gradient of {key}")


@checks("training")
def test_a_training_forward_moves_the_state_like_credit(
    credit: Any, block: dict[str, Any], check: str
):
    """Vectors of spectral norm, by one iteration a call, and running statistics."""
    assert_training_forward_equals_credit(credit, block)


@checks("samples")
def test_samples_equal_credit(credit: Any, block: dict[str, Any], name: str, check):
    """DDIM and DDPM with every objective, by `lax.scan`."""
    dtype = check.partition("_")[2]
    bound = FLOAT64 if dtype == "float64" else CASES[name].samples
    assert_samples_equal_credit(credit, block, name, dtype, bound)


@checks("keys")
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, block: dict[str, Any], check: str
):
    assert_round_trip(credit, block)


def test_every_model_is_in_the_table():
    assert {case.block["type"] for case in CASES.values()} == MODELS.keys()
