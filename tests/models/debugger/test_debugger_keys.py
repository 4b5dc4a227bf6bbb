"""The key table of debugger, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.debugger.cases import DEBUGGER
from tests.state_dict.round_trip import assert_round_trip

pytestmark = pytest.mark.reference


def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit: Any) -> None:
    assert_round_trip(credit, DEBUGGER)
