"""unet-diffusion against serial CREDIT: network, process and samplers."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models import parity
from tests.models.diffusion_parity import assert_samples_equal_credit
from tests.models.unet.cases import DIFFUSION_CASES as CASES
from tests.state_dict.round_trip import assert_round_trip

pytestmark = [
    pytest.mark.reference,
    # Warning of the case "text"; a test below expects it.
    pytest.mark.filterwarnings("ignore:.*model.full_attn .got the string"),
]


def _credits(block: dict[str, Any]) -> dict[str, Any]:
    """Returns the section with the padding that CREDIT's constructor requires."""
    return {"padding_conf": {"activate": False}, **block}


BLOCKS = {name: _credits(block) for name, block in CASES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equals_credit(credit: Any, name: str) -> None:
    parity.assert_equals_credit(parity.Networks(credit), BLOCKS[name], name)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    parity.assert_equals_credit(
        Networks(credit), BLOCKS["padded"], "padded, plain", "xla"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own levels", "padded"])
def test_equals_credit_array_by_array_in_float64(credit: Any, name: str) -> None:
    parity.assert_equals_credit_in_float64(parity.Networks(credit), BLOCKS[name], name)


@pytest.mark.slow
def test_training_forward_equals_credit(credit: Any) -> None:
    parity.assert_training_forward_equals_credit(
        parity.Networks(credit), BLOCKS["padded"]
    )


@pytest.mark.slow
def test_samples_equal_credit(credit: Any) -> None:
    """DDPM of all steps; CREDIT's step embedding is float32 in every dtype."""
    assert_samples_equal_credit(
        credit, BLOCKS["own levels"], "own levels", "float32", 1e-5
    )


@pytest.mark.parametrize("name", CASES)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    """The buffers of the process are the first keys."""
    assert_round_trip(credit, BLOCKS[name])


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    """Except for the number of frames, as CREDIT's default fails."""
    theirs = parity.credits_defaults("models.unet_diffusion", "UnetDiffusion")
    section = {"image_size": [640, 1280]}
    config = parse_model({"type": "unet-diffusion", "diffusion": section})
    without = {"frames": 2, "self_condition": False, "condition": False}
    for key, value in without.items():
        assert theirs.pop(key) == value
    kept = {key: value for key, value in theirs.items() if hasattr(config, key)}
    assert {key: getattr(config, key) for key in kept} == kept
    others = {*config.ignored, *config.unavailable}
    assert theirs.keys() - kept.keys() <= others
    assert not any(config.problems())


WRONG = {
    "frames": ({"frames": 2}, "frames"),
    "grid": ({"image_height": 18}, "18 . 4 padding = 22; expected a multiple of 4"),
    "levels": ({"dim_mults": [1] * 5}, "24 . 4 padding = 28; expected a multiple of"),
    "time": ({"dim": [7]}, r"dim\[0\] is 7; expected an even number"),
    "heads": ({"attn_heads": [1, 2]}, "attn_heads has 2 entries; expected one for"),
    "levels of attention": ({"full_attn": [True]}, "full_attn has 1 entries"),
    "features": ({"learned_sinusoidal_cond": True}, "process refuses it"),
    "dropout": ({"dropout": 1.0}, "dropout: must be less than 1.0, got 1.0"),
    "no channels": (
        {"channels": 0, "surface_channels": 0, "output_only_channels": 0},
        "0 output channels",
    ),
    "corrections": ({"gen1_post_conf": {"activate": False}}, "gen1_post_conf"),
    "unknown key": ({"dimension": 3}, "dimension: unknown key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**CASES["padded"], **change})


def test_keys_that_only_credit_accepts_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="model.depth .CREDIT's unet-diffusion"):
        parse_model({**CASES["padded"], "depth": [2, 2]})
    with pytest.warns(UserWarning, match="model.dim .only its first entry counts"):
        parse_model({**CASES["padded"], "dim": [8, 3]})
    with pytest.warns(UserWarning, match="full_attn .got the string 'None', which"):
        parse_model({**CASES["padded"], "full_attn": "None"})
    empty = {**CASES["padded"]["diffusion"], "sampling_timesteps": 0}
    with pytest.warns(UserWarning, match="sampling_timesteps .with 0 a sample is the"):
        parse_model({**CASES["padded"], "diffusion": empty})
