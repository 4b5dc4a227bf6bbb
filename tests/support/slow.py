"""Marks cases of parametrized tests that run only in `make slow`."""

from collections.abc import Sequence
from typing import Any

import pytest


def mark_slow(cases: Sequence[Any], *, but: Sequence[Any]) -> list[Any]:
    """Returns cases of a parametrized test, all marked slow except some.

    Args:
        cases: values, or tuples of them.
        but: the cases that `make test` runs; `make slow` runs the others.
    """
    unknown = [case for case in but if case not in cases]
    assert not unknown, f"no such cases: {unknown}"

    def marked(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.slow)

    return [case if case in but else marked(case) for case in cases]
