"""NextGen WXFormer against serial CREDIT, and its `model:` section."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models.crossformer.cases import NEXTGEN_CASES as CASES
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    credits_defaults,
)

BLOCK = CASES["levels"]


# Each case is one program: in float64, where every array is compared, or in float32.
def test_equals_credit(credit: Any) -> None:
    assert_equals_credit(credit, CASES["odd"], "odd")


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, BLOCK, "levels, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, BLOCK, "levels")


@pytest.mark.slow
def test_training_forward_moves_the_state_like_credit(credit: Any) -> None:
    """Separate matrices of q, k and v, and the network of the nodes."""
    assert_training_forward_equals_credit(credit, BLOCK)


def test_spectral_norm_passes_over_the_levels() -> None:
    matrices = build(BLOCK).matrices
    assert {path for path in matrices if path.startswith("nodes")} == {
        "nodes/up/kernel",
        "nodes/down/kernel",
    }
    assert not [path for path in matrices if "levels" in path]
    projections = "stages/2/blocks/short_attention/to_qkv"
    assert {f"{projections}/{name}" for name in "qkv"} <= matrices.keys()


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    theirs = credits_defaults("models.wxformer.wxformer_next", "NextGenWXFormer")
    assert theirs.pop("local_window_size") == 10
    config = parse_model({"type": "nextgen_wxformer"})
    assert config.local_window_size == (10,) * 4
    assert {key: getattr(config, key) for key in theirs} == theirs


# changes of the section, the error
WRONG = {
    "heads": (
        {"col_attn_heads": 3},
        r"model.channels is 4, which model.col_attn_heads = 3 does not divide",
    ),
    "stride": ({"col_attn_stride": 33}, r"col_attn_stride is 33; expected at most 32"),
    "no levels": ({"channels": 0}, r"0 channels on 3 levels; expected at least 1"),
    "window": (
        {"local_window_size": 3},
        r"local_window_size\[2\] is 3, which does not divide the height 4",
    ),
    "groups": ({"dim": [12, 16, 32, 64]}, r"which the 12 groups"),
    "a list that is too short": (
        {"cross_embed_kernel_sizes": [[2, 4], [2, 4]]},
        "cross_embed_kernel_sizes.2: missing",
    ),
    "unknown key": ({"num_nodes": 2}, "num_nodes: unknown key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BLOCK, **change})


def test_heads_that_tensor_does_not_divide_are_refused() -> None:
    found = build(BLOCK).validate(tensor=3)
    assert "are not divisible by tensor 3" in found[0]


@pytest.mark.parametrize(
    "key", ["padding_conf", "post_conf", "interp", "attn_dropout", "output_frames"]
)
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    match = f"model.{key} .CREDIT's nextgen_wxformer ignores"
    with pytest.warns(UserWarning, match=match):
        parse_model({**BLOCK, key: 1})


def test_diagnostics_with_a_base_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="the first 1 of 1 have the input-only"):
        parse_model({**BLOCK, "output_only_channels": 1})
