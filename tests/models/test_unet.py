"""What only the U-Nets do; the rest is in `CASES`."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from credit_jax.models.conversion import idle_keys
from credit_jax.models.registry import build, parse_model
from tests.models.cases import CASES, UNET_BASE
from tests.models.parity import assert_training_forward_equals_credit
from tests.support.credit_modules import credit_attribute


@pytest.mark.slow
def test_runge_kutta_moves_the_statistics_four_times_like_credit(credit: Any) -> None:
    """Output is not compared: four networks with batch norms amplify rounding."""
    block = CASES["unet tendency"].block
    case = assert_training_forward_equals_credit(credit, block, output=False)
    counts = {k: int(v) for k, v in case.state.items() if k.endswith("batches_tracked")}
    moved = {k: int(case.state_after[k]) - count for k, count in counts.items()}
    assert set(moved.values()) == {0, 4}, "idle layers never see a batch"


@pytest.mark.filterwarnings("ignore:.*pretrained weights are not downloaded")
def test_the_architecture_has_the_defaults_of_the_library(credit: Any) -> None:
    unet = credit_attribute("models.unet", "smp").Unet
    theirs = {k: p.default for k, p in signature(unet.__init__).parameters.items()}
    parsed: Any = parse_model({**UNET_BASE, "architecture": {"name": "unet"}})
    config = parsed.architecture
    for key in (
        *("encoder_name", "encoder_depth", "encoder_weights"),
        *("decoder_channels", "decoder_interpolation"),
    ):
        assert getattr(config, key) == theirs[key], key
    assert config.decoder_use_norm.type == theirs["decoder_use_norm"]
    assert config.decoder_use_batchnorm is None
    assert theirs["activation"] is None


def test_forms_of_the_normalization() -> None:
    for key, value, expected in (
        ("decoder_use_norm", True, "batchnorm"),
        ("decoder_use_norm", False, "identity"),
        ("decoder_use_norm", "InstanceNorm", "instancenorm"),
        ("decoder_use_norm", {"type": "identity"}, "identity"),
        ("decoder_use_batchnorm", False, "identity"),
        ("decoder_use_batchnorm", None, "batchnorm"),
    ):
        architecture = {**UNET_BASE["architecture"], key: value}
        decoder = parse_model({**UNET_BASE, "architecture": architecture}).architecture
        norm = decoder.decoder_use_batchnorm or decoder.decoder_use_norm
        assert norm.type == expected, (key, value)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:.*does not see the last")
@pytest.mark.parametrize("name", ["two frames", "odd"])
def test_keys_without_gradient_are_idle(credit: Any, name: str) -> None:
    """Layers after a shallow encoder, and the gates of the block without a skip."""
    import torch

    block = CASES[f"unet {name}"].block
    model, model_def = credit.build_credit(block, seed=1), build(block)
    model(torch.randn(model_def.inputs["x"].shape(2))).sum().backward()
    without = [key for key, p in model.named_parameters() if p.grad is None]
    idle = idle_keys(model_def)
    assert [key for key in idle if key in dict(model.named_parameters())] == without
