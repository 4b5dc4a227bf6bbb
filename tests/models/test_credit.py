"""Every model beside serial CREDIT with the same weights: the checks of `CASES`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from credit_jax.models.registry import MODELS
from tests.models import parity
from tests.models.cases import CASES, checks
from tests.support import assert_close

pytestmark = [
    pytest.mark.reference,
    # Of cases whose keys have no effect in CREDIT either.
    pytest.mark.filterwarnings("ignore::credit_jax.config.base.ConfigWarning"),
]


@checks("float32", "float64")
def test_equals_credit(credit: Any, block: dict[str, Any], name: str, check: str):
    """Forward, and the gradients by every parameter and input; each is one program."""
    dtype, _, implementation = check.partition("_")
    ours, theirs = parity.assert_equals_credit(
        *(credit, block, name, implementation or "cpu"),
        dtype=dtype,
        seed=CASES[name].seed,
    )
    gates = [key for key in theirs if ".attention." in key]
    if block["type"] == "crossformer":
        assert bool(gates) == bool(block.get("attention_type"))
        for key in gates:
            assert_close(
                ours[key], theirs[key], parity.GRADIENT, f"{name}: gradient of {key}"
            )


def _draw_vectors(model: Any) -> None:
    for key, vector in model.named_buffers():
        if key.endswith("weight_u"):
            vector.normal_()
            vector /= vector.norm()


@checks("training")
def test_a_training_forward_moves_the_state_like_credit(
    credit: Any, block: dict[str, Any], check: str
):
    """Vectors of spectral norm, also as drawn, and running statistics; meshes, too."""
    words = check.split("_")
    options: dict[str, Any] = {"prepare": _draw_vectors} if "drawn" in words else {}
    options |= {"dtype": "float64"} if "float64" in words else {}
    mesh = next((word for word in words if word in parity.MESHES), "one")
    parity.assert_training_forward_equals_credit(credit, block, mesh, **options)


@checks("samples")
def test_samples_equal_credit(credit: Any, block: dict[str, Any], name: str, check):
    """DDIM and DDPM with every objective, by `lax.scan`."""
    dtype = check.partition("_")[2]
    bound = parity.FLOAT64 if dtype == "float64" else CASES[name].samples
    parity.assert_samples_equal_credit(credit, block, name, dtype, bound)


@checks("keys")
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, block: dict[str, Any], check: str
):
    parity.assert_round_trip(credit, block)


def test_every_model_and_check_is_in_the_table():
    assert {case.block["type"] for case in CASES.values()} == MODELS.keys()
    tests = {"float32", "float64", "training", "samples", "keys", *parity.MESHES, "|"}
    checked = {check for case in CASES.values() for check in case.checks.split()}
    assert {check.partition("_")[0] for check in checked} <= tests


# Families whose network is that of another one, with other ends.
SHARED = {"strips", "camulator", "crossformer_downscaling", "diffusion", "ensemble"}


def test_every_commit_has_each_architecture_beside_credit_and_on_a_mesh() -> None:
    quick: dict[str, str] = {}
    for name, case in CASES.items():
        family, text = name.split()[0], case.checks.partition("|")[0]
        quick[family] = f"{quick.get(family, '')} {text}"
    for family in quick.keys() - SHARED:
        assert re.search("training_(drawn_)?2x2x2", quick[family]), family
