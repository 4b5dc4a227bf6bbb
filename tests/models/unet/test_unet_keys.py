"""The key table of unet and unet_downscaling, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from credit_jax.models.conversion import idle_keys
from credit_jax.models.registry import build
from tests.models.unet.cases import BASE, CASES, DOWNSCALING, SMALL
from tests.state_dict.round_trip import assert_round_trip

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore:.*does not see the last"),
]

RESNET50 = {**BASE, "architecture": {**SMALL, "encoder_name": "resnet50"}}
BLOCKS = {**CASES, "downscaling": DOWNSCALING, "resnet50": RESNET50}


@pytest.mark.slow(but=["two frames", "groups", "downscaling"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    assert_round_trip(credit, BLOCKS[name])


@pytest.mark.parametrize("name", ["two frames", "odd"])
def test_keys_without_gradient_are_idle(credit: Any, name: str) -> None:
    """Layers after a shallow encoder, and the gates of the block without a skip."""
    model = credit.build_credit(BLOCKS[name], seed=1)
    model_def = build(BLOCKS[name])
    model(torch.randn(model_def.inputs["x"].shape(2))).sum().backward()
    without = [key for key, p in model.named_parameters() if p.grad is None]
    idle = idle_keys(model_def)
    assert [key for key in idle if key in dict(model.named_parameters())] == without
