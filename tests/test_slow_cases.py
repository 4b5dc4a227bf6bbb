"""Cases that run on every commit have no mark; ids that a test lacks are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.slow_cases import pytest_collection_modifyitems, pytest_itemcollected

SLOW = pytest.mark.slow.mark
TORCH = pytest.mark.torch.mark


def collect(*but: str, args: tuple[str, ...] = ("tests",)) -> list[str]:
    """Returns the node ids of the tests that stay slow."""
    some = pytest.mark.slow(but=[*but]).mark
    marks = {"a.py::test_some[a[1]]": [some, TORCH], "a.py::test_some[b]": [some]}
    marks |= {"a.py::test_all": [SLOW], "a.py::test_none": [], "b.py::test_some[c]": []}
    items: list[Any] = [
        SimpleNamespace(nodeid=name, own_markers=[*own]) for name, own in marks.items()
    ]
    for item in items:
        pytest_itemcollected(item)
    config: Any = SimpleNamespace(args=args)
    pytest_collection_modifyitems(config, items)
    assert TORCH in items[0].own_markers
    return [
        item.nodeid
        for item in items
        if any(mark.name == "slow" for mark in item.own_markers)
    ]


def test_cases_but_some_are_slow() -> None:
    assert collect("b") == ["a.py::test_some[a[1]]", "a.py::test_all"]
    assert collect("a[1]") == ["a.py::test_some[b]", "a.py::test_all"]
    assert collect("a[1]", "b") == ["a.py::test_all"]


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"a.py::test_some.*'c'.*'a\[1\]', 'b'"):
        collect("b", "c")
    assert collect("b", "c", args=("a.py::test_some[b]",))[1:] == ["a.py::test_all"]
