"""The table of sizes and its budgets."""

import pytest

pytest.importorskip("griffe", reason="make test installs mkdocstrings")

from tools.house import TITLES, counts_of, main, problems

SOURCE = '''"""A module."""

import os
from pathlib import (
    Path,
)

# Why.
known = {"place": os}


def _check(path: Path) -> None:
    """One line.

    Raises:
        ValueError: always.
    """
    raise ValueError(path)


def read(x):
    _check(x)
    if x:  # not of its own line
        return known
    assert x is None
    return None
'''


def test_kinds_of_lines():
    counts = counts_of(SOURCE)
    assert counts["lines"] == len(SOURCE.splitlines()) == 26
    assert counts["imports"] == 4
    assert counts["comments"] == 1
    assert counts["code"] == 26 - 4 - 1 - 6 - 6  # without docstrings and blanks
    assert counts["functions"] == 2
    assert counts["short_functions"] == 1
    assert counts["helpers"] == 1
    assert counts["validation"] == 7 + 1
    assert (counts["names"], counts["words"]) == (5, 1)


NUMBERS = dict.fromkeys(TITLES, 10)
TEXT = "[tool.house]\nlines = {}\n"


@pytest.mark.parametrize(
    ("text", "last", "message"),
    [
        (TEXT.format(10), None, None),
        (TEXT.format(9), None, "lines: 10, with a budget of 9: remove what"),
        (TEXT.format(12), TEXT.format(11), "lines: raised from 11 to 12; say why"),
        (TEXT.format("12  # a new model"), TEXT.format(11), None),
        (TEXT.format(10), TEXT.format(11), None),
    ],
)
def test_budgets(text, last, message):
    lines = list(problems(NUMBERS, text, last))
    assert len(lines) == (message is not None)
    assert message is None or message in lines[0]


def test_the_packages_are_within_their_budgets(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(TITLES)
