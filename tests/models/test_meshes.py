"""Every model on meshes against one device: the checks of `CASES`.

Most run the plain definitions, as accelerators do. Loops with collectives are unrolled
in these tests, because XLA on CPU does not order collectives in loops
(`parallel.compiler`).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.parallel.params.precision import Float8
from tests.models import parity
from tests.models.cases import CASES, checks
from tests.support import assert_close

pytestmark = pytest.mark.filterwarnings("ignore::credit_jax.config.base.ConfigWarning")


@checks(*parity.MESHES)
def test_equals_one_device(block: dict[str, Any], name: str, check: str) -> None:
    """Prediction, loss, gradient and state; in float64 every array of the gradient."""
    case, (mesh, _, how) = CASES[name], check.partition("_")
    options: dict[str, Any] = {"remat": case.remat, "batch": case.batch}
    options |= {"dtype": "float64"} if how == "float64" else {}
    options |= {"implementation": "cpu"} if how == "cpu" else {}
    parity.assert_equals_one_device(block, mesh, name, **options)


@pytest.mark.slow
def test_float8_rounds_alike_on_every_mesh() -> None:
    """Scales are powers of two from maxima, so that all meshes round equally."""
    block, float8 = CASES["wxformer earth"].block, Float8(min_channels=16)
    with jax.enable_x64(True):
        actual, expected = (
            parity.run(block, mesh, "float64", float8=float8)
            for mesh in ("2x2x2", "one")
        )
        wide = parity.one_device(block, "float64")
    parity.compare(actual, expected, "float8")
    error = assert_close(actual[0], wide[0], 0.1, "float8 against float64")
    assert error > 1e-4, "nothing was rounded"


@pytest.mark.slow
def test_bfloat16_stays_near_float32() -> None:
    """bfloat16 compute with float32 parameters, statistics and sums."""
    block = CASES["wxformer plain"].block
    wide, narrow = parity.one_device(block), parity.run(block, "domain2", "bfloat16")
    assert narrow[2]["head/out/kernel"].dtype == np.float32
    assert_close(narrow[1], wide[1], 2e-2, "bfloat16 loss against float32")
    assert_close(narrow[0], wide[0], 5e-2, "bfloat16 prediction against float32")
