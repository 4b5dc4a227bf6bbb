"""CREDIT's older crossformer against serial CREDIT, and its `model:` section."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models.crossformer.cases import CROSSFORMER_CASES as CASES
from tests.models.parity import (
    GRADIENT,
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    credits_defaults,
)
from tests.support import assert_close

BLOCK = CASES["mirror"]


# Without "mirror", which the next two tests use.
@pytest.mark.slow(but=["odd"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "mirror"])
def test_equals_credit(credit: Any, name: str) -> None:
    ours, theirs = assert_equals_credit(credit, CASES[name], name)
    small = [key for key in theirs if ".attention." in key]
    assert bool(small) == bool(CASES[name].get("attention_type"))
    for key in small:
        assert_close(ours[key], theirs[key], GRADIENT, f"{name}: gradient of {key}")


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, BLOCK, "mirror, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, BLOCK, "mirror")


@pytest.mark.slow
def test_training_forward_moves_the_state_like_credit(credit: Any) -> None:
    """Spectral norm of transposed convolutions, and the batch norms' statistics."""
    assert_training_forward_equals_credit(credit, CASES["coordinates"])


# changes of the section, the error
WRONG = {
    "kernel below stride": (
        {"cross_embed_kernel_sizes": [[1, 4], [2, 4], [2, 4], [2, 4]]},
        r"cross_embed_kernel_sizes\[0\] is \[1, 4\] with stride 2",
    ),
    "kernels that make different grids": (
        {"cross_embed_kernel_sizes": [[4, 5], [2, 4], [2, 4], [2, 4]]},
        r"make \[32, 31\] of 64 points",
    ),
    "a decoder that makes half the grid": (
        {
            "interp": False,
            "cross_embed_strides": [4, 2, 2, 2],
            "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
            "depth": [0, 0, 0, 0],
        },
        "interp is false and the decoder makes 13 x 24 points of the 45 x 56",
    ),
    "no kernel": (
        {"cross_embed_kernel_sizes": [[], [2, 4], [2, 4], [2, 4]]},
        r"cross_embed_kernel_sizes.0: must have at least 1",
    ),
    "flat padding": (
        {"padding_conf": None, "pad_lat": 80, "pad_lon": 40},
        r"mode: mirror, pad_lat: \[80, 80\], pad_lon: \[40, 40\]",
    ),
    "attention that CREDIT does not know": (
        {"attention_type": "scse"},
        "model.attention_type: must be one of .*'scse_standard'.* got 'scse'",
    ),
    "denoiser": ({"diffusion": True}, r"model.diffusion: .*not available"),
    "unknown key": (
        {"upsample_conv": True},
        r"upsample_conv: unknown key; the nearest known key is 'upsample_v_conv'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BLOCK, **change})


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    theirs = credits_defaults("models.crossformer", "CrossFormer")
    assert theirs.pop("local_window_size") == 10
    config = parse_model({"type": "crossformer"})
    assert config.local_window_size == (10,) * 4
    assert {key: getattr(config, key) for key in theirs} == theirs


@pytest.mark.parametrize("key", ["frame_patch_size", "static_channels"])
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    with pytest.warns(UserWarning, match=f"model.{key} .CREDIT's crossformer ignores"):
        parse_model({**BLOCK, key: 1})


def test_what_asks_for_nothing_is_accepted() -> None:
    config = parse_model(
        {
            **BLOCK,
            "attention_type": "None",
            "post_conf": {"activate": False, "tracer_fixer": {"activate": True}},
            "diffusion": False,
        }
    )
    assert config.attention_type is None
    assert hash(config) == hash(parse_model(BLOCK)), "equal configs, one program"
    assert not any(config.problems())


def test_flat_padding_beside_padding_conf_has_no_effect() -> None:
    with pytest.warns(UserWarning, match="pad_lat .padding_conf is there and counts"):
        config = parse_model({**BLOCK, "pad_lat": 80, "pad_lon": 80})
    assert config.geometry() == parse_model(BLOCK).geometry()


def test_one_number_pads_both_ends() -> None:
    """As CREDIT's older programs read it."""
    padding = {"activate": True, "mode": "mirror", "pad_lat": 8, "pad_lon": 4}
    config = parse_model({"type": "crossformer", "padding_conf": padding})
    assert config.pads == ((8, 8), (4, 4))
