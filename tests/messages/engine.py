"""Messages: wrong configs, files and calls as data, and what is said as text.

A test module with these cases has `from tests.messages.engine import *` and
`CASES = Cases(NAME)`. The file NAME.txt of this folder has a block for each: what is
given, the type of the error or the exit code, and the messages. In them folders of
tests are FOLDER. The files in `tmp_path` must be the same before and after a call.
`python -m tests.messages [-k NAME]` writes the blocks anew; `git diff` shows them.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "pytest_generate_tests",
    "test_each_block_is_that_of_a_case",
    "test_what_is_said",
]
UPDATE = "UPDATE_MESSAGES"
TMP = re.compile(r"/[^\s'\"`]*?/pytest-of-\w+/pytest-\d+(/popen-gw\d+)?/\w+?\d+\b")
# The current folder and what it holds, and the model that tests register.
HERE = {str(Path.cwd()): "HERE", " tiny,": ""}
HOLDS = re.compile(r"('\.' holds: ).*?(?=;|$)", re.M)
# What a library says, and digests of the files that it writes.
OTHERS = re.compile(r"(\(\w*Error[:(]).*?(?=\)(?:;|$))|(SHA-256) \w+", re.M)
BLOCK = re.compile(r"^=== (.*)\n((?:(?!=== ).*\n)*)", re.M)


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    marks: tuple[Any, ...] = ()

    def call(self, request: pytest.FixtureRequest) -> Any:
        """Calls it; parameters without argument and default are fixtures."""
        signature = inspect.signature(self.function)
        bound = signature.bind_partial(*self.args, **(self.kwargs or {})).arguments
        fixtures = {
            name: request.getfixturevalue(name)
            for name, parameter in signature.parameters.items()
            if name not in bound
            and parameter.default is inspect.Parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        return self.function(*self.args, **(self.kwargs or {}), **fixtures)


class Cases(dict[str, Case]):
    """The cases of a module by name, and the file with what they say."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.path = Path(__file__).with_name(f"{name}.txt")

    def blocks(self) -> dict[str, str]:
        text = self.path.read_text() if self.path.exists() else ""
        return dict(BLOCK.findall(text))

    def rows(
        self, function: Callable[..., Any], *rows: Any, name: str = "", marks: Any = ()
    ) -> None:
        """Adds calls of one function: a row is a dict of keywords, a tuple of arguments
        or one argument.
        """
        for row in rows:
            args = row if isinstance(row, tuple) else (row,)
            kwargs = row if isinstance(row, dict) else {}
            args = () if kwargs or row == {} else args
            given = ", ".join(
                [
                    *(repr(each) for each in args),
                    *(f"{k.replace('__', '.')}={v!r}" for k, v in kwargs.items()),
                ]
            )
            given = re.sub(
                r"<function <lambda> at \w+>", "f", f"{name} {given}".strip()
            )
            self.add(Case(given, function, args, kwargs, marks))

    def case(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Adds a function, which is the name. What it makes is made before the call if
        it returns the call.
        """
        marks = tuple(getattr(function, "pytestmark", ()))
        self.add(
            Case(function.__name__.replace("_", " ").strip(), function, marks=marks)
        )
        return function

    def call(self, name: str, function: Callable[..., Any]) -> None:
        self.add(Case(name, function))

    def add(self, case: Case) -> None:
        assert case.name not in self, f"two cases: {case.name}"
        assert "\n" not in case.name, f"name these arguments: {case.name}"
        self[case.name] = case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ == "test_what_is_said":
        module: Any = metafunc.module
        cases = module.CASES.values()
        each = [pytest.param(case, marks=case.marks, id=case.name) for case in cases]
        metafunc.parametrize("case", each)


def test_what_is_said(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, capsys: Any
) -> None:
    said = "".join(outcome(case, tmp_path, request, capsys))
    cases = request.node.module.CASES
    blocks = cases.blocks()
    if UPDATE in os.environ:
        blocks[case.name] = said
        texts = (f"=== {name}\n{blocks[name]}" for name in cases if name in blocks)
        cases.path.write_text("".join(texts))
    remedy = "python -m tests.messages writes what is said now"
    assert said == blocks.get(case.name), remedy


def test_each_block_is_that_of_a_case(request: pytest.FixtureRequest) -> None:
    cases = request.node.module.CASES
    assert [*cases.blocks()] == [*cases] or UPDATE in os.environ


def outcome(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, capsys: Any
) -> Iterable[str]:
    """Yields the lines of a block."""

    def messages(kind: str, each: Iterable[str]) -> Iterable[str]:
        yield f"{kind.replace(str(tmp_path), 'FOLDER')}\n"
        for text in each:
            text = TMP.sub("FOLDER", text.replace(str(tmp_path), "FOLDER")).rstrip()
            for given, written in HERE.items():
                text = text.replace(given, written)
            # Checked annotations leave the name of the function out.
            text = re.sub(r"\w+\(\) (?=got an unexpected keyword)", "", text)
            text = OTHERS.sub(r"\1\2 ...", HOLDS.sub(r"\1...", text))
            lines = [line.rstrip() for line in text.splitlines()]
            yield "- " + "\n  ".join(filter(None, lines)) + "\n"

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error")
        warnings.simplefilter("always", UserWarning)
        files, value = None, None
        try:
            value = case.call(request)
            if callable(value):
                capsys.readouterr()
                files = contents(tmp_path)
                value = value()
        except (Exception, SystemExit) as error:
            value = error
    printed = capsys.readouterr()
    assert files is None or contents(tmp_path) == files, "files were written or lost"
    if isinstance(value, SystemExit):
        value = value.code
    if isinstance(value, Exception):
        # The source of the problems of a config stands in their first line.
        problems = getattr(value, "problems", [str(value)])
        source = getattr(value, "source", "config")
        of = "" if source == "config" else f" of {source}"
        yield from messages(f"{type(value).__name__}{of}", problems)
    elif isinstance(value, int):
        assert "Traceback" not in printed.err
        yield from messages(f"exit {value}", [printed.err or printed.out])
    elif isinstance(value, str | list):
        yield from messages("says", [value] if isinstance(value, str) else value)
    if warned:
        yield from messages("warns", (str(each.message) for each in warned))


def contents(folder: Path) -> dict[Path, bytes | None]:
    paths = folder.rglob("*")
    return {path: path.read_bytes() if path.is_file() else None for path in paths}
