"""The key table of nextgen_wxformer, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.crossformer.cases import NEXTGEN_CASES
from tests.state_dict.round_trip import assert_round_trip

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("name", NEXTGEN_CASES)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    assert_round_trip(credit, NEXTGEN_CASES[name])
