"""CAMulator against serial CREDIT, and its `model:` section."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models.crossformer.cases import CAMULATOR_CASES as CASES
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    credits_defaults,
)

BLOCK = CASES["two frames"]

pytestmark = pytest.mark.filterwarnings("ignore:.*does not see the last")


# Each case is one program: in float64, where every array is compared, or in float32.
@pytest.mark.slow(but=["patches"])
@pytest.mark.parametrize("name", ["three frames", "patches"])
def test_equals_credit(credit: Any, name: str) -> None:
    assert_equals_credit(credit, CASES[name], name)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, BLOCK, "two frames, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, CASES["earth"], "earth")


@pytest.mark.slow
def test_training_forward_moves_the_state_like_credit(credit: Any) -> None:
    """Spectral norm of everything but the sharpening."""
    assert_training_forward_equals_credit(credit, BLOCK)


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    theirs = credits_defaults("models.camulator", "Camulator")
    assert theirs.pop("local_window_size") == 10
    config = parse_model({"type": "camulator"})
    assert config.local_window_size == (10,) * 4
    assert {key: getattr(config, key) for key in theirs} == theirs


# changes of the section, the error
WRONG = {
    "four frames": ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
    "kernel below stride": (
        {"cross_embed_kernel_sizes": [[1, 4], [2, 4], [2, 4], [2, 4]]},
        r"cross_embed_kernel_sizes\[0\] is \[1, 4\] with stride 2",
    ),
    "patches on one side": ({"patch_height": 2}, "expected both 1 or both above 1"),
    "window": (
        {"local_window_size": 3},
        r"local_window_size\[2\] is 3, which does not divide the height 4",
    ),
    "unknown key": ({"frame": 2}, "frame: unknown key; the nearest known key is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BLOCK, **change})


def test_a_frame_that_is_not_seen_is_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="model.frames .3: the model takes the mean"):
        parse_model(CASES["three frames"])
    parse_model(CASES["patches"] | {"frames": 3})


def test_four_frames_fail_in_credit_too(credit: Any) -> None:
    import torch

    model = credit.build_credit({**BLOCK, "frames": 4})
    x = torch.zeros(1, model.input_channels, 4, 32, 32)
    with pytest.raises(RuntimeError):
        model(x)


@pytest.mark.parametrize(
    "key", ["output_frames", "upsample_v_conv", "attention_type", "frame_patch_size"]
)
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    with pytest.warns(UserWarning, match=f"model.{key} .CREDIT's camulator ignores"):
        parse_model({**BLOCK, key: 2})


def test_patches_of_a_padded_grid_are_accepted() -> None:
    """CREDIT's reshape fails there."""
    padding = {"activate": True, "mode": "earth", "pad_lat": [1, 1], "pad_lon": [0, 0]}
    block = {**CASES["patches"], "image_height": 62, "padding_conf": padding}
    assert build(block).config.geometry().patched == (32, 32)
