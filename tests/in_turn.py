"""What runs in turn by the number of the commit: slow tests, checks of annotations.

    pytest --slow-since COMMIT    this pytest plugin chooses slow tests
    python -m tests.in_turn       prints the option of pytest for annotations

Always those that the change since that commit reaches (`tools.touched.reached`); of the
others those whose turn it is by the number of the last commit, so that each runs at
least at every fourth. Where git lacks the history, all run. `tests/conftest.py` loads
this plugin. Annotations are checked in whole runs (Makefile) at every fourth commit,
and always where pytest is called for some files, as by `make quick`.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from zlib import crc32

import pytest

from tools.imports import ROOT
from tools.touched import changed, reached

TURNS = 4
# Cases of a function that run together.
TOGETHER = 6
# Without it, pyproject.toml's packages are imported with checks of their annotations.
UNCHECKED = "--jaxtyping-packages="
# Files of slow tests that run for each file that changed, if as many reach it.
AT_LEAST = 6


def pytest_report_header(config: pytest.Config) -> str:
    """Says which slow tests run."""
    base, number = config.getoption("slow_since"), commit_number()
    if not is_known(base) or number is None:
        return f"slow tests: all, as {base} is not in this clone or it is shallow"
    return (
        f"slow tests: turn {number % TURNS} of {TURNS}, and what changed since {base}"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselects slow tests that are neither reached nor in turn."""
    base, number = config.getoption("slow_since"), commit_number()
    if not is_known(base) or number is None:
        return
    slow = [item.nodeid for item in items if is_slow(item)]
    turns = turns_of(slow)
    always = reached(changed(base), {file_of(test) for test in slow}, AT_LEAST)

    def runs(item: pytest.Item) -> bool:
        turn = turns.get(item.nodeid)
        return turn in (None, number % TURNS) or file_of(item.nodeid) in always

    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    items[:] = [item for item in items if runs(item)]


def checks_annotations(number: int | None) -> bool:
    """Whether a whole run checks annotations at the commit of a number."""
    return number is None or number % TURNS == 0


def turns_of(tests: Iterable[str]) -> dict[str, int]:
    """Returns the turn of each test.

    Up to `TOGETHER` cases of a function have one turn: they share what one device
    gives, and its programs. The functions of a file, which take similarly long, and the
    parts of those with more cases have one turn after the other, so that all turns take
    about as long. A new one moves those after it; the file has changed, so all run.

    Args:
        tests: node ids.
    """
    positions: dict[str, dict[str, int]] = {}
    cases: Counter[str] = Counter()
    turns = {}
    for test in tests:
        file, function = file_of(test), test.partition("[")[0]
        functions = positions.setdefault(file, {})
        position = functions.setdefault(function, len(functions))
        part = cases[function] // TOGETHER
        turns[test] = (crc32(file.encode()) + position + part) % TURNS
        cases[function] += 1
    return turns


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is marked slow."""
    return item.get_closest_marker("slow") is not None


def file_of(test: str) -> str:
    """Returns the path of a test's file in the repository."""
    return test.partition("::")[0]


def commit_number() -> int | None:
    """Returns how many commits lead to the last one, or None in a shallow clone."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return None
    return int(_git("rev-list", "--count", "--first-parent", "HEAD"))


def is_known(commit: str) -> bool:
    """Whether the clone has a commit."""
    return bool(_git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"))


def _git(*command: str) -> str:
    done = subprocess.run(("git", *command), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    print("" if checks_annotations(commit_number()) else UNCHECKED)
