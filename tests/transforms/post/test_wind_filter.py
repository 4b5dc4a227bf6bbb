"""`wind_artifact_filter` where no wind is strong."""

import numpy as np
import pytest

from tests.physics import world
from tests.physics.runs import run_blocks, run_credit
from tests.support import assert_close

ROWS = 5


@pytest.mark.reference
def test_no_strong_wind(credit):
    """CREDIT's gradient is NaN: sqrt(num / (den + 1e-12)) of wind_filter.py, at 0 / 0.

    The mask is 0 everywhere then, and with it both sums. Values are not changed.
    """
    paths = {"physics": "", "levels": ""}
    kind, args = world.blocks(paths)["wind, anisotropic"]
    spec = kind, {**args, "speed_threshold": 1e4}
    tree = world.tree(ROWS)
    expected, theirs = run_credit(spec, tree)
    assert np.isnan(theirs[world.U]).any()
    values, gradients = run_blocks({"wind": spec}, tree)["wind"]
    for key, field in expected.items():
        assert_close(values[key], field, 1e-6, key)
        assert_close(field, tree["y_processed"]["S"][key], 1e-6, f"{key}, unchanged")
        assert np.isfinite(gradients[key]).all(), key
        assert gradients[key].any(), key
