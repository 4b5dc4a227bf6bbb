"""The error assertions fail where they should."""

import numpy as np
import pytest

from tests.support import assert_close, assert_trees_close, relative_error


def test_relative_error_is_the_ratio_of_norms():
    assert relative_error([3.0, 4.0], [3.0, 0.0]) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    "actual", [[1.0, np.nan], [1.0, np.inf], [1.0], [[1.0, 2.0]]], ids=str
)
def test_what_cannot_be_compared_is_infinitely_wrong(actual):
    assert relative_error(actual, [1.0, 2.0]) == np.inf


def test_assert_close_prints_the_error_and_fails_by_name(capsys):
    assert_close([1.0, 2.0], [1.0, 2.0], 1e-6, "equal")
    assert "equal: relative error 0.00e+00" in capsys.readouterr().out
    with pytest.raises(AssertionError, match=r"drift: relative error 5\.000e-01"):
        assert_close([3.0], [2.0], 1e-6, "drift")


def test_trees_report_missing_keys_and_the_worst_key():
    tree = {"a": np.ones(3), "b": np.ones(2)}
    with pytest.raises(AssertionError, match=r"missing \['b'\]"):
        assert_trees_close({"a": np.ones(3)}, tree, 1e-6, "tree")
    with pytest.raises(AssertionError, match=r"above 1e-06: \{'b'"):
        assert_trees_close({"a": np.ones(3), "b": np.zeros(2)}, tree, 1e-6, "tree")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_trees_fail_on_values_that_are_not_finite(bad):
    with pytest.raises(AssertionError, match="above"):
        assert_trees_close({"a": [bad]}, {"a": [0.0]}, 1e-6, "tree")
