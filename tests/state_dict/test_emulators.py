"""The key tables of camulator, crossformer_downscaling and debugger, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.crossformer.cases import (
    CAMULATOR_CASES,
    DOWNSCALING_CASES,
    ENSEMBLE_CASES,
    NEXTGEN_CASES,
)
from tests.models.debugger.cases import DEBUGGER
from tests.state_dict.round_trip import assert_round_trip

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore:.*does not see the last"),
]

BLOCKS = {
    **{f"camulator {name}": block for name, block in CAMULATOR_CASES.items()},
    **{f"downscaling {name}": block for name, block in DOWNSCALING_CASES.items()},
    **{f"nextgen {name}": block for name, block in NEXTGEN_CASES.items()},
    **{f"ensemble {name}": block for name, block in ENSEMBLE_CASES.items()},
    "debugger": DEBUGGER,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    assert_round_trip(credit, BLOCKS[name])


def test_sharpening_has_no_spectral_norm(credit: Any) -> None:
    model = credit.build_credit(CAMULATOR_CASES["earth"])
    sharp = [key for key in model.state_dict() if ".sharp." in key]
    assert sharp, "the decoder sharpens"
    assert not [key for key in sharp if "weight_" in key]
