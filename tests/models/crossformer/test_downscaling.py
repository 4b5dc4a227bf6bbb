"""CREDIT's crossformer for downscaling against serial CREDIT, and its section."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models.crossformer.cases import DOWNSCALING_CASES as CASES
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    credits_defaults,
)

BLOCK = CASES["mirror"]


def test_equals_credit(credit: Any) -> None:
    assert_equals_credit(credit, CASES["patches"], "patches")


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, BLOCK, "mirror, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, BLOCK, "mirror")


@pytest.mark.slow
def test_training_forward_moves_the_state_like_credit(credit: Any) -> None:
    assert_training_forward_equals_credit(credit, BLOCK)


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    theirs = credits_defaults(
        "models.wxformer.crossformer_downscaling", "DownscalingCrossFormer"
    )
    assert theirs.pop("local_window_size") == 10
    counts = {"boundary": 81, "prognostic": 36, "diagnostic": 9}
    config = parse_model({"type": "crossformer_downscaling", "channels": counts})
    assert config.local_window_size == (10,) * 4
    assert {key: getattr(config, key) for key in theirs} == theirs
    assert (config.input_channels, config.output_channels) == (117, 45)


# changes of the section, the error
WRONG = {
    "four frames": ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
    "no counts": ({"channels": 4}, r"model.channels: must be a section of keys, got 4"),
    "a count is missing": (
        {"channels": {"boundary": 3, "prognostic": 4}},
        r"model.channels.diagnostic",
    ),
    "no output": (
        {"channels": {"boundary": 3, "prognostic": 0, "diagnostic": 0}},
        r"3 input and 0 output .*channels.prognostic 0 \+ channels.diagnostic 0",
    ),
    "kernel below stride": (
        {"cross_embed_kernel_sizes": [[1, 4], [2, 4], [2, 4], [2, 4]]},
        r"cross_embed_kernel_sizes\[0\] is \[1, 4\] with stride 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BLOCK, **change})


@pytest.mark.parametrize("key", ["output_frames", "upsample_v_conv", "levels"])
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    match = f"model.{key} .CREDIT's crossformer_downscaling ignores"
    with pytest.warns(UserWarning, match=match):
        parse_model({**BLOCK, key: 2})
