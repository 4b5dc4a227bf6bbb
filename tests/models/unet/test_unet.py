"""CREDIT's U-Nets against serial CREDIT, and their `model:` sections."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from credit_jax.config.load import FRAMES_OF_DATA
from credit_jax.models.registry import MODELS, build, parse_model
from credit_jax.models.unet.config import UNetKeys
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    assert_training_state_equals_credit,
    credits_defaults,
)
from tests.models.unet.cases import BASE, CASES, DOWNSCALING, SMALL
from tests.support.credit_modules import credit_attribute

BLOCKS = {**CASES, "downscaling": DOWNSCALING}
# In the deep models rounding flips the sign of some units, at which the gradient jumps,
# and four networks in a row amplify this. The float32 difference from CREDIT depends on
# the CPU (9e-4 and 1.3e-5 were measured), so that these are compared in float64.
FLOAT32 = ["downscaling"]
FLOAT64 = ["two frames", "groups", "tendency"]

pytestmark = pytest.mark.filterwarnings("ignore:.*does not see the last")


@pytest.mark.parametrize("name", FLOAT32)
def test_equals_credit(credit: Any, name: str) -> None:
    assert_equals_credit(credit, BLOCKS[name], name)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit_in_float64(credit, CASES["odd"], "odd, plain", "xla")


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOAT64)
def test_equals_credit_array_by_array_in_float64(credit: Any, name: str) -> None:
    assert_equals_credit_in_float64(credit, CASES[name], name)


@pytest.mark.slow
def test_training_forward_moves_the_statistics_like_credit(credit: Any) -> None:
    assert_training_forward_equals_credit(credit, BASE)


@pytest.mark.slow
def test_runge_kutta_moves_the_statistics_four_times_like_credit(credit: Any) -> None:
    """Output is not compared: four networks with batch norms amplify rounding."""
    case, _ = assert_training_state_equals_credit(credit, CASES["tendency"])
    counts = {k: int(v) for k, v in case.state.items() if k.endswith("batches_tracked")}
    moved = {k: int(case.state_after[k]) - count for k, count in counts.items()}
    assert set(moved.values()) == {0, 4}, "idle layers never see a batch"


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        ("unet", "models.unet", "SegmentationModel"),
        ("unet_downscaling", "models.unet_downscaling", "DownscalingSegmentationModel"),
    ],
)
def test_the_defaults_are_those_of_credit(
    credit: Any, kind: str, module: str, name: str
) -> None:
    theirs = credits_defaults(module, name)
    assert theirs.pop("architecture") is None, "CREDIT fails without it"
    given = {"channels": DOWNSCALING["channels"]} if "down" in kind else {}
    config = parse_model({"type": kind, "architecture": SMALL, **given})
    assert {key: getattr(config, key) for key in theirs} == theirs


@pytest.mark.filterwarnings("ignore:.*pretrained weights are not downloaded")
def test_the_architecture_has_the_defaults_of_the_library(credit: Any) -> None:
    unet = credit_attribute("models.unet", "smp").Unet
    theirs = {
        k: p.default for k, p in inspect.signature(unet.__init__).parameters.items()
    }
    config = parse_model({**BASE, "architecture": {"name": "unet"}}).architecture
    for key in (
        *("encoder_name", "encoder_depth", "encoder_weights"),
        *("decoder_channels", "decoder_interpolation"),
    ):
        assert getattr(config, key) == theirs[key], key
    assert config.decoder_norm.type == theirs["decoder_use_norm"]
    assert theirs["activation"] is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("decoder_use_norm", True, "batchnorm"),
        ("decoder_use_norm", False, "identity"),
        ("decoder_use_norm", "InstanceNorm", "instancenorm"),
        ("decoder_use_norm", {"type": "identity"}, "identity"),
        ("decoder_use_batchnorm", False, "identity"),
        ("decoder_use_batchnorm", None, "batchnorm"),
    ],
)
def test_forms_of_the_normalization(key: str, value: Any, expected: str) -> None:
    config = parse_model({**BASE, "architecture": {**SMALL, key: value}})
    assert config.architecture.decoder_norm.type == expected


# changes of the section, the error
WRONG = {
    "another network": (
        {"architecture": {**SMALL, "name": "unet++"}},
        r"architecture.name: architecture 'unet\+\+' is not available; there are: unet",
    ),
    "another encoder": (
        {"architecture": {**SMALL, "encoder_name": "vgg16"}},
        "encoder 'vgg16' is not available; there are: resnet18",
    ),
    "norm of columns": (
        {"architecture": {**SMALL, "decoder_use_norm": "LayerNorm"}},
        "decoder_use_norm: 'layernorm' is not available: in CREDIT it normalizes",
    ),
    "unknown norm": (
        {"architecture": {**SMALL, "decoder_use_norm": "rmsnorm"}},
        "decoder_use_norm: must be one of 'batchnorm', 'instancenorm' or 'identity'",
    ),
    "norm without scales": (
        {
            "architecture": {
                **SMALL,
                "decoder_use_norm": {"type": "batchnorm", "affine": False},
            }
        },
        "decoder_use_norm: affine is false: batchnorm without scales and biases",
    ),
    "channels and depth": (
        {"architecture": {**SMALL, "encoder_depth": 4}},
        r"decoder_channels has 5 entries; expected encoder_depth 4",
    ),
    "narrow": (
        {"architecture": {**SMALL, "decoder_channels": [64, 32, 16, 16, 8]}},
        "decoder_channels.4: must be at least 16, got 8",
    ),
    "output activation": (
        {"architecture": {**SMALL, "activation": "softmax"}},
        "activation: must be one of 'identity', 'sigmoid' or 'tanh', got .softmax.",
    ),
    "four frames": ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
    "tendency of other channels": (
        {"rk4_integration": True},
        "rk4_integration adds the output to the input, but there are 7 input and 6",
    ),
    "no architecture": ({"architecture": None}, "architecture"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BASE, **change})


def test_pretrained_weights_are_named_in_a_warning() -> None:
    block = {**BASE, "architecture": {"name": "unet", "encoder_weights": "imagenet"}}
    with pytest.warns(UserWarning, match="pretrained weights are not downloaded"):
        parse_model(block)


def test_keys_that_only_credit_accepts_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"model.padding_conf .CREDIT's unet ignores"):
        parse_model({**BASE, "padding_conf": {"activate": True}})


def test_models_that_take_their_frames_from_the_data():
    """The layer of configs names them, as it knows no models."""
    named = {
        kind for kind, entry in MODELS.items() if issubclass(entry.config, UNetKeys)
    }
    assert named == set(FRAMES_OF_DATA)
