"""CREDIT's debugger against serial CREDIT, and its `model:` section."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.models.registry import build, parse_model
from tests.models.debugger.cases import DEBUGGER as BLOCK
from tests.models.mesh_parity import (
    assert_equals_one_device,
    assert_equals_one_device_in_float64,
)
from tests.models.parity import assert_equals_credit, assert_equals_credit_in_float64


def test_equals_credit(credit: Any) -> None:
    assert_equals_credit(credit, BLOCK, "debugger")


def test_equals_credit_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, BLOCK, "debugger")


@pytest.mark.parametrize("mesh", ["domain3", "domain8"])
def test_equals_one_device(mesh: str) -> None:
    assert_equals_one_device(BLOCK, mesh, "debugger", remat="full")


def test_equals_one_device_in_float64() -> None:
    assert_equals_one_device_in_float64(BLOCK, "debugger", remat="full")


def test_the_output_has_the_frames_of_the_input() -> None:
    assert build(BLOCK).output_frames == 2


def test_other_keys_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"model.use_spectral_norm .unknown key"):
        parse_model({**BLOCK, "use_spectral_norm": True})


def test_channels_are_there() -> None:
    none = {"channels": 0, "surface_channels": 0, "output_only_channels": 0}
    with pytest.raises(ValueError, match="2 input and 0 output channels"):
        build({**BLOCK, **none})
