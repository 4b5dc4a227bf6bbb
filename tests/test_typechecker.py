"""Checks of functions are made once, when they are called, and check the types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

from tests import typechecker


def within(dims: str) -> Any:
    """Returns a nested function of an array with these dims."""

    def total(x, y):
        return x.sum() + y

    array = Float[np.ndarray, dims]
    total.__annotations__ = {"x": array, "y": float, "return": float}
    return jaxtyped(total, typechecker=typechecker.check)


def test_each_signature_has_its_own_check() -> None:
    row, matrix = np.ones(3), np.ones((3, 2))
    for _ in range(2):
        assert within("n")(row, 1) == 4
        assert within("n m")(matrix, 1) == 7
        for dims, wrong in ("n", matrix), ("n m", row):
            with pytest.raises(TypeCheckError):
                within(dims)(wrong, 1)
        with pytest.raises(TypeCheckError):
            within("n")(row, "1")


def test_the_second_function_of_a_signature_makes_no_check(monkeypatch: Any) -> None:
    first = within("rows")
    assert first(np.ones(2), 0) == 2

    def unexpected(signature: Any) -> Any:
        raise AssertionError(signature.__qualname__)

    monkeypatch.setattr(typechecker, "_decorate", unexpected)
    assert within("rows") is not first
    assert within("rows")(np.ones(2), 0) == 2
    with pytest.raises(TypeCheckError):
        within("other")(np.ones(2), 0)
