"""The plugins of these tests, their checks of types, and their assertions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

from tests import suite, typechecker
from tests.suite import (
    FIRST,
    MOST,
    TESTS,
    pytest_collection_modifyitems,
    pytest_itemcollected,
    pytest_report_header,
    rank,
)
from tests.support import assert_close, assert_trees_close, relative_error
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
        item = SimpleNamespace(nodeid=name, own_markers=[*own], path=Path(name))
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


def test_long_folders_come_first_and_files_keep_their_order(tmp_path: Any) -> None:
    names = ("config/b", "models/b", "test_a", "training/b", "models/a/c", "config/a")
    files = [TESTS / f"{name}.py" for name in names]
    assert sorted((tmp_path, *files), key=rank) == [
        *(files[3], files[1], files[4]),
        *(tmp_path, files[0], files[2], files[5]),
    ]
    assert all((TESTS / folder).is_dir() for folder in FIRST)


@pytest.mark.slow
def test_programs_are_dropped_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    used, drops = [0.0], []
    monkeypatch.setattr(suite, "resident", lambda: used[0])
    monkeypatch.setattr(suite, "_after_last_time", 0.0)
    monkeypatch.setattr(jax, "clear_caches", lambda: drops.append(used[0]))
    for used[0] in (4e9, 5.5e9, 6e9, 6.6e9, 5.2e9):
        suite.drop_programs()
    assert drops == [5.5e9, 6.6e9]


def test_memory_of_programs_goes_back_to_the_system() -> None:
    """Also memory freed between objects that are still in use."""
    blocks = [b"x" * (100_000 + number) for number in range(2000)]
    before = suite.resident()
    kept = blocks[::20]
    del blocks
    suite.return_freed_memory()
    assert len(kept) == 100
    assert suite.resident() < before - 1e8


ROOT = Path(__file__).parents[1]

PASSES = "def test_it(): pass"
SKIPPED = """
import pytest
@pytest.mark.skip(reason="for a reason")
def test_it(): pass
"""
SKIPS = """
import pytest
def test_it(): pytest.skip("for a reason")
"""
IMPORTS = """
import pytest
pytest.importorskip("no_such_module", reason="for a reason")
def test_it(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [("true", "1 failed, 1 passed, 2 errors"), ("", "1 passed, 3 skipped")],
)
def test_a_skip_fails_in_ci_alone(ci, outcomes, tmp_path):
    codes = {"passes": PASSES, "skipped": SKIPPED, "skips": SKIPS, "imports": IMPORTS}
    for name, code in codes.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rs"]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not ci), done.stdout
    assert outcomes in done.stdout
    assert "for a reason" in done.stdout


FILES = {
    "stays": "def test_it(): pass",
    "file": "import torch\ndef test_it(): assert False",
    "helper": "import tests.support.gradients, credit.losses\ndef test_it(): pass",
    "fixture": "def test_it(torch): assert False",
    "reference": "def test_it(credit): assert False",
    "marked": """
import pytest
@pytest.mark.reference
def test_it(): assert False
""",
    "undeclared": "def test_it(): import torch",
    "other": "import no_such_module",
    "library": "from credit_jax import imports_torch",
    "skips": """
import pytest
def test_it(): pytest.importorskip("torch.nn")
""",
}


# A module of the library that imports torch.
CONFTEST = """
import credit_jax
credit_jax.__path__.append({!r})
"""


@pytest.mark.slow
def test_what_needs_torch_is_left_out_and_nothing_else(tmp_path):
    for name, code in FILES.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    reference: CREDIT\n")
    library = tmp_path / "library"
    library.mkdir()
    (library / "imports_torch.py").write_text("import torch")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(str(library)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rA"]
    done = subprocess.run(
        [*command, "--without-torch", "--continue-on-collection-errors", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CI": "true"},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^([A-Z]+) \S*/test_(\w+)\.py", done.stdout, re.MULTILINE)
    assert set(found) == {
        ("PASSED", "stays"),
        ("FAILED", "undeclared"),
        ("FAILED", "skips"),
        ("ERROR", "other"),
        ("ERROR", "library"),
    }, done.stdout
    assert "3 deselected" in done.stdout


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
