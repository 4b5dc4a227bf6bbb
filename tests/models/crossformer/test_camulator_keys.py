"""The key table of camulator, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.crossformer.cases import CAMULATOR_CASES
from tests.state_dict.round_trip import assert_round_trip

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("name", CAMULATOR_CASES)
@pytest.mark.filterwarnings("ignore:.*does not see the last")
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    assert_round_trip(credit, CAMULATOR_CASES[name])


def test_sharpening_has_no_spectral_norm(credit: Any) -> None:
    model = credit.build_credit(CAMULATOR_CASES["earth"])
    sharp = [key for key in model.state_dict() if ".sharp." in key]
    assert sharp, "the decoder sharpens"
    assert not [key for key in sharp if "weight_" in key]
