"""crossformer-diffusion against serial CREDIT: network, process and samplers."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from credit_jax.models.registry import build, parse_model
from tests.models import parity
from tests.models.crossformer.cases import DIFFUSION_CASES as CASES
from tests.models.diffusion_parity import assert_samples_equal_credit
from tests.state_dict.round_trip import assert_round_trip

pytestmark = pytest.mark.reference


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equals_credit(credit: Any, name: str) -> None:
    parity.assert_equals_credit(parity.Networks(credit), CASES[name], name)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    parity.assert_equals_credit(parity.Networks(credit), CASES["v"], "v, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    parity.assert_equals_credit_in_float64(parity.Networks(credit), CASES["v"], "v")


@pytest.mark.slow
def test_training_forward_equals_credit(credit: Any) -> None:
    """Layers of the time embedding are called twice, and so iterate twice."""
    parity.assert_training_forward_equals_credit(parity.Networks(credit), CASES["v"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_samples_equal_credit(credit: Any, name: str) -> None:
    """DDIM and DDPM with every objective, by `lax.scan`, in float64."""
    with jax.enable_x64(True):
        assert_samples_equal_credit(credit, CASES[name], name, "float64", 1e-9)


def test_samples_equal_credit_in_float32(credit: Any) -> None:
    assert_samples_equal_credit(credit, CASES["v"], "v", "float32", 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    """The buffers of the process are the first keys."""
    assert_round_trip(credit, CASES[name])


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    """Except for the number of frames, as CREDIT's default fails."""
    theirs = parity.credits_defaults(
        "models.wxformer.crossformer_diffusion", "CrossFormerDiffusion"
    )
    process = parity.credits_defaults("diffusion", "GaussianDiffusion")
    config = parse_model(
        {"type": "crossformer-diffusion", "diffusion": {"image_size": [640, 1280]}}
    )
    assert theirs.pop("frames") == 2
    assert not theirs.pop("self_condition")
    assert theirs.pop("condition")
    theirs["local_window_size"] = (theirs["local_window_size"],) * 4
    assert {key: getattr(config, key) for key in theirs} == theirs
    assert not process.pop("immiscible")
    assert process.pop("auto_normalize")
    assert {key: getattr(config.diffusion, key) for key in process} == process
    assert not any(config.problems())


def _with(**changes: Any) -> dict[str, Any]:
    block = CASES["v"]
    return {**block, "diffusion": {**block["diffusion"], **changes}}


WRONG = {
    "frames": ({**CASES["v"], "frames": 2}, "frames"),
    "patches": (
        {**CASES["noise"], "patch_height": 2, "patch_width": 2},
        "patch_width are 2 and 2; expected 1",
    ),
    "grid": (_with(image_size=[32, 30]), r"expected the grid of the model, \[30, 30\]"),
    "negative": (_with(sampling_timesteps=-1), "expected 1 to timesteps = 50"),
    "many steps": (_with(sampling_timesteps=51), "expected 1 to timesteps = 50"),
    "linear": (_with(beta_schedule="linear", timesteps=20), "expected at least 21"),
    "condition": (_with(condition=False), "condition is false; expected true"),
    "self-condition": (_with(self_condition=True), "no channels for it"),
    "immiscible": (_with(immiscible=True), "immiscible"),
    "eta": (
        _with(ddim_sampling_eta=2),
        "ddim_sampling_eta: must be at most 1.0, got 2",
    ),
    "arguments": (_with(schedule_fn_kwargs={"s": 1}), "has 's'; the sigmoid schedule"),
    "unknown key": (_with(steps=3), "steps: unknown key"),
    "no process": (
        {k: v for k, v in CASES["v"].items() if k != "diffusion"},
        "model.diffusion",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    block, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build(block)


def test_keys_that_only_credit_accepts_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="model.attention_type .CREDIT's"):
        parse_model({**CASES["v"], "attention_type": "eca"})
    with pytest.warns(UserWarning, match="model.diffusion.auto_normalize .CREDIT"):
        parse_model(_with(auto_normalize=False))
