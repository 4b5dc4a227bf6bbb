"""Slow tests run when a change reaches them, or in turn."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import in_turn
from tests.in_turn import (
    BENCHMARKS,
    TOGETHER,
    TURNS,
    benchmarks,
    checked_packages,
    turns_of,
)
from tests.support.git import new_repository
from tools import touched

OP = "tests/ops/test_conv.py"
FAR = "tests/reliability/test_kill_matrix.py"


def item(file: str, name: str, slow: bool) -> Any:
    return SimpleNamespace(
        nodeid=f"{file}::{name}",
        get_closest_marker=lambda marker: slow or None,
    )


SLOW = [item(FAR, f"test_{number}", slow=True) for number in range(40)]
REACHED = [item(OP, f"test_{number}", slow=True) for number in range(40)]
QUICK = [item(FAR, f"test_quick_{number}", slow=False) for number in range(40)]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: Any) -> Any:
    """A function that makes a commit; the repository is that of the plugin."""
    commit = new_repository(tmp_path)
    monkeypatch.setattr(in_turn, "ROOT", tmp_path)
    monkeypatch.setattr(in_turn, "AT_LEAST", 1)
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    (tmp_path / "credit_jax/ops").mkdir(parents=True)
    commit("a")
    return commit


def selected(base: str) -> list[Any]:
    out: list[Any] = []
    config: Any = SimpleNamespace(
        getoption=lambda name: {"slow_since": base}[name],
        hook=SimpleNamespace(pytest_deselected=lambda items: out.extend(items)),
    )
    items = [*SLOW, *REACHED, *QUICK]
    in_turn.pytest_collection_modifyitems(config, items)
    assert {test.nodeid for test in items}.isdisjoint(test.nodeid for test in out)
    assert len(items) + len(out) == len(SLOW) + len(REACHED) + len(QUICK)
    in_turn.pytest_report_header(config)
    return items


def test_each_slow_test_runs_at_every_fourth_commit(repository: Any) -> None:
    runs = []
    for number in range(TURNS):
        repository(f"b{number}")
        items = selected("HEAD~1")
        assert [test for test in items if test in QUICK] == QUICK
        runs += [test.nodeid for test in items if test not in QUICK]
    assert sorted(runs) == sorted(test.nodeid for test in (*SLOW, *REACHED))


def test_each_annotation_is_checked_at_every_fourth_commit() -> None:
    checked = [name for turn in range(TURNS) for name in checked_packages(turn)]
    assert sorted(checked) == sorted(checked_packages(None))
    assert {"credit_jax.models", "credit_jax.train", "credit_torch_bridge.cli"} < {
        *checked
    }


def test_each_benchmark_runs_at_every_fourth_commit() -> None:
    run = [name for number in range(TURNS) for name in benchmarks(number)]
    assert run == [*BENCHMARKS.values()] == benchmarks(None)


def test_what_a_change_reaches_always_runs(repository: Any) -> None:
    repository("credit_jax/ops/conv.py")
    items = selected("HEAD~1")
    assert [test for test in items if test in REACHED] == REACHED
    assert 0 < sum(test in SLOW for test in items) < len(SLOW)
    repository("b")
    assert sum(test in REACHED for test in selected("HEAD~1")) < len(REACHED)
    assert [test for test in selected("HEAD~2") if test in REACHED] == REACHED


def test_without_the_history_all_run(repository: Any, tmp_path: Path) -> None:
    everything = [*SLOW, *REACHED, *QUICK]
    assert selected("HEAD~1") == everything
    repository("b")
    assert selected("HEAD~1") != everything
    head = (tmp_path / ".git/refs/heads").rglob("*")
    commit = next(path for path in head if path.is_file()).read_text()
    (tmp_path / ".git/shallow").write_text(commit)
    assert selected("HEAD") == everything
    shutil.rmtree(tmp_path / ".git")
    assert selected("HEAD") == everything


def test_some_cases_of_a_function_run_together() -> None:
    names = ("test_a[1-x]", "test_b", "test_a[2-[y]]")
    first, second, third = turns_of(f"{OP}::{name}" for name in names).values()
    assert first == third
    assert second == (first + 1) % TURNS
    names = [f"{OP}::test_a[{number}]" for number in range(TOGETHER + 1)]
    turns = [*turns_of(names).values()]
    assert {*turns[:-1]} == {first}
    assert turns[-1] == second


def test_turns_have_as_many_functions() -> None:
    turns = [*turns_of(test.nodeid for test in SLOW).values()]
    assert {turns.count(turn) for turn in range(TURNS)} == {len(SLOW) // TURNS}
