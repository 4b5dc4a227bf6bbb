"""The plugin of these tests, their checks of types, and their assertions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

from tests import suite, typechecker
from tests.support import assert_close, assert_trees_close, relative_error
from tests.support.git import new_repository
from tools import touched

ROOT = Path(__file__).parents[1]
SLOW = pytest.mark.slow.mark


class Item:
    """A test as `suite` sees it."""

    def __init__(self, nodeid: str, marks: list[pytest.Mark]) -> None:
        self.nodeid, self.own_markers, self.path = nodeid, [*marks], Path(nodeid)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.own_markers if mark.name == name), None)


def collect(
    marks: dict[str, list[pytest.Mark]], base: str | None = None, args: Any = ("tests",)
) -> list[str]:
    """Returns the node ids of the slow tests that run."""
    items: list[Any] = [Item(name, own) for name, own in marks.items()]
    for item in items:
        suite.pytest_itemcollected(item)
    config: Any = SimpleNamespace(
        args=args,
        getoption={"slow_since": base}.get,
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
    )
    suite.pytest_report_header(config)
    suite.pytest_collection_modifyitems(config, items)
    quick = {name for name, own in marks.items() if SLOW not in own}
    assert {item.nodeid for item in items} >= quick
    return [item.nodeid for item in items if item.get_closest_marker("slow")]


def test_cases_but_some_are_slow() -> None:
    def slow(*but: str, **options: Any) -> list[str]:
        some = pytest.mark.slow(but=[*but]).mark
        marks = {"a.py::test_some[a[1]]": [some], "a.py::test_some[b]": [some]}
        marks |= {"a.py::test_all": [SLOW], "a.py::test_none": []}
        return collect(marks | {"b.py::test_some[c]": []}, **options)

    assert slow("b") == ["a.py::test_some[a[1]]", "a.py::test_all"]
    assert slow("a[1]") == ["a.py::test_some[b]", "a.py::test_all"]
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
    marks |= {f"tests/ops/test_conv.py::test_b[{n}]": [SLOW] for n in range(suite.MOST)}
    few = collect(marks | {named: [SLOW]}, "HEAD~2")
    assert len(few) == suite.MOST
    assert named in few


def test_long_folders_come_first_and_files_keep_their_order(tmp_path: Path) -> None:
    names = ("config/b", "models/b", "test_a", "training/b", "models/a/c", "config/a")
    files = [suite.TESTS / f"{name}.py" for name in names]
    order = sorted((tmp_path, *files), key=suite.rank)
    assert order == [files[3], files[1], files[4], tmp_path, files[0], *files[2::3]]
    assert all((suite.TESTS / folder).is_dir() for folder in suite.FIRST)


def test_programs_are_dropped_between_files_and_memory_goes_back(monkeypatch) -> None:
    """Also memory freed between objects that are still in use."""
    first, second = (SimpleNamespace(path=Path(name)) for name in "ab")
    blocks = [b"x" * (100_000 + number) for number in range(2000)]
    used = blocks[::20]
    del blocks
    before = suite.gibibytes("VmRSS")
    monkeypatch.setattr(suite, "LIMIT", before + 1)
    suite.pytest_runtest_teardown(first, second)
    assert suite.gibibytes("VmRSS") > before - 0.1
    monkeypatch.setattr(suite, "LIMIT", 0)
    suite.pytest_runtest_teardown(first, first)
    assert suite.gibibytes("VmRSS") > before - 0.1
    suite.pytest_runtest_teardown(first, second)
    assert suite.gibibytes("VmRSS") < before - 0.1
    assert len(used) == 100


def run_pytest(folder: Path, files: dict[str, str], *words: str, ci: str = "") -> Any:
    """Runs test files of these texts with the plugin of these tests."""
    folder.mkdir()
    for name, code in files.items():
        (folder / name).write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    reference: CREDIT\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *words]
    return subprocess.run(
        [*command, "--continue-on-collection-errors", str(folder)],
        cwd=ROOT,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
    )


SKIPS = {
    "passes": "def test_it(): pass",
    "skipped": "@pytest.mark.skip(reason='for a reason')\ndef test_it(): pass",
    "skips": "def test_it(): pytest.skip('for a reason')",
    "imports": "pytest.importorskip('no_such_module', reason='for a reason')",
}


@pytest.mark.slow
def test_a_skip_fails_in_ci_alone(tmp_path: Path) -> None:
    files = {f"test_{n}.py": f"import pytest\n{code}" for n, code in SKIPS.items()}
    for ci in ("true", ""):
        done = run_pytest(tmp_path / f"ci{ci}", files, ci=ci)
        assert done.returncode == (1 if ci else 0), done.stdout
        assert "1 passed, 3 skipped" in done.stdout
        assert done.stdout.count("for a reason") == (3 if ci else 0)


WITHOUT_TORCH = {
    "stays": ("def test_it(): pass", "PASSED"),
    "file": ("import torch\ndef test_it(): assert False", ""),
    "helper": ("import tests.support.gradients, credit.losses", ""),
    "fixture": ("def test_it(torch): assert False", ""),
    "credit": ("def test_it(credit): assert False", ""),
    "marked": (
        "import pytest\n@pytest.mark.reference\ndef test_it(): assert False",
        "",
    ),
    "undeclared": ("def test_it(): import torch", "FAILED"),
    "other": ("import no_such_module", "ERROR"),
    "library": ("from credit_jax import imports_torch", "ERROR"),
}


@pytest.mark.slow
def test_what_needs_torch_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    # A module of the library that imports torch.
    (library := tmp_path / "library").mkdir()
    (library / "imports_torch.py").write_text("import torch")
    files = {f"test_{name}.py": code for name, (code, _) in WITHOUT_TORCH.items()}
    files["conftest.py"] = (
        f"import credit_jax\ncredit_jax.__path__ += [{str(library)!r}]"
    )
    done = run_pytest(tmp_path / "files", files, "-rA", "--without-torch", ci="true")
    outcomes = re.findall(r"^([A-Z]+) \S*/test_(\w+)\.py", done.stdout, re.MULTILINE)
    expected = {(outcome, name) for name, (_, outcome) in WITHOUT_TORCH.items()}
    assert {*outcomes} == {pair for pair in expected if pair[0]}, done.stdout
    assert "3 deselected" in done.stdout


def within(dims: str) -> Any:
    """Returns a nested function of an array with these dims."""

    def total(x, y):
        return x.sum() + y

    array = Float[np.ndarray, dims]
    total.__annotations__ = {"x": array, "y": float, "return": float}
    return jaxtyped(total, typechecker=typechecker.check)


def test_each_signature_has_its_own_check_made_once(monkeypatch: Any) -> None:
    row, matrix = np.ones(3), np.ones((3, 2))
    for _ in range(2):
        assert within("n")(row, 1) == 4
        assert within("n m")(matrix, 1) == 7
        for dims, *wrong in ("n", matrix, 1), ("n m", row, 1), ("n", row, "1"):
            with pytest.raises(TypeCheckError):
                within(dims)(*wrong)
        monkeypatch.setattr(typechecker, "_decorate", None)
    with pytest.raises(TypeError):
        within("other")(row, 1)


def test_what_cannot_be_compared_is_infinitely_wrong() -> None:
    assert relative_error([3.0, 4.0], [3.0, 0.0]) == pytest.approx(4 / 3)
    for actual in ([1.0, np.nan], [1.0, np.inf], [1.0], [[1.0, 2.0]]):
        assert relative_error(actual, [1.0, 2.0]) == np.inf


def test_assertions_print_the_error_and_fail_by_name(capsys: Any) -> None:
    assert_close([1.0, 2.0], [1.0, 2.0], 1e-6, "equal")
    assert "equal: relative error 0.00e+00" in capsys.readouterr().out
    with pytest.raises(AssertionError, match=r"drift: relative error 5\.000e-01"):
        assert_close([3.0], [2.0], 1e-6, "drift")
    tree = {"a": np.ones(3), "b": np.ones(2)}
    for wrong, words in (
        ({"a": np.ones(3)}, r"missing \['b'\]"),
        ({**tree, "b": np.zeros(2)}, r"above 1e-06: \{'b'"),
        ({**tree, "b": np.array([1, np.nan])}, "above"),
        ({**tree, "b": np.array([1, np.inf])}, "above"),
    ):
        with pytest.raises(AssertionError, match=words):
            assert_trees_close(wrong, tree, 1e-6, "tree")
