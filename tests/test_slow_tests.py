"""Which cases are slow, and which slow tests run after a change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slow_tests import (
    MOST,
    pytest_collection_modifyitems,
    pytest_itemcollected,
    pytest_report_header,
)
from tests.support.git import new_repository
from tools import touched

SLOW = pytest.mark.slow.mark
TORCH = pytest.mark.torch.mark


def is_slow(item: Any) -> bool:
    return any(mark.name == "slow" for mark in item.own_markers)


def collect(
    marks: dict[str, list[pytest.Mark]], base: str | None = None, args: Any = ("tests",)
) -> list[str]:
    """Returns the node ids of the slow tests that run."""
    items: list[Any] = []
    for name, own in marks.items():
        item = SimpleNamespace(nodeid=name, own_markers=[*own])
        item.get_closest_marker = lambda _, item=item: is_slow(item) or None
        items.append(item)
    config: Any = SimpleNamespace(
        args=args,
        getoption=lambda name: {"slow_since": base}[name],
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
    )
    for item in items:
        pytest_itemcollected(item)
    pytest_report_header(config)
    pytest_collection_modifyitems(config, items)
    quick = [name for name, own in marks.items() if SLOW not in own]
    assert {item.nodeid for item in items} >= {*quick}
    return [item.nodeid for item in items if is_slow(item)]


def test_cases_but_some_are_slow() -> None:
    def slow(*but: str, **options: Any) -> list[str]:
        some = pytest.mark.slow(but=[*but]).mark
        marks = {"a.py::test_some[a[1]]": [some, TORCH], "a.py::test_some[b]": [some]}
        marks |= {"a.py::test_all": [SLOW], "a.py::test_none": []}
        return collect(marks | {"b.py::test_some[c]": []}, **options)

    assert slow("b") == ["a.py::test_some[a[1]]", "a.py::test_all"]
    assert slow("a[1]") == ["a.py::test_some[b]", "a.py::test_all"]
    assert slow("a[1]", "b") == ["a.py::test_all"]
    with pytest.raises(pytest.UsageError, match=r"a.py::test_some.*'c'.*'a\[1\]', 'b'"):
        slow("b", "c")
    assert slow("b", "c", args=("a.py::test_some[b]",))[1:] == ["a.py::test_all"]


def test_slow_tests_that_a_change_reaches_run(tmp_path: Path, monkeypatch: Any) -> None:
    conv, data = "tests/ops/test_conv.py::test_a", "tests/none/test_a.py::test_b"
    marks = {conv: [SLOW], data: [SLOW], "tests/none/test_a.py::test_quick": []}
    commit = new_repository(tmp_path)
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    (tmp_path / "credit_jax/ops").mkdir(parents=True)
    for name in ("a", "credit_jax/ops/conv.py", "b"):
        commit(name)
    assert collect(marks, "HEAD~1") == collect(marks, "no such commit") == []
    assert collect(marks, "HEAD~2") == [conv]
    named = "tests/ops/test_conv.py::test_b[conv]"
    marks |= {f"tests/ops/test_conv.py::test_b[{n}]": [SLOW] for n in range(MOST)}
    few = collect(marks | {named: [SLOW]}, "HEAD~2")
    assert len(few) == MOST
    assert named in few
