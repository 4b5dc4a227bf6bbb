"""The configs of the accuracy benchmarks."""

import pytest

from benchmarks.accuracy.case import case_config


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="--rows must be from 22 to 62, got 64"):
        case_config(64, 20, 8)
    with pytest.raises(ValueError, match="must be a multiple of it, got 7"):
        case_config(32, 7, 8)
