"""What runs in turn by the number of the commit: slow tests, annotations, benchmarks.

    pytest --slow-since COMMIT             this pytest plugin chooses slow tests
    python -m tests.in_turn annotations    prints pytest's option for annotations
    python -m tests.in_turn benchmarks     prints targets of make

Always those that the change since that commit reaches (`tools.touched.reached`); of the
others those whose turn it is by the number of the last commit, so that each runs at
least at every fourth. Where git lacks the history, all run. `tests/conftest.py` loads
this plugin. Whole runs (Makefile) check the annotations of a fourth of the packages,
and runs of some files, as by `make quick`, those of all. Each benchmark beside the
tests (.ci/run) runs at every fourth commit.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from zlib import crc32

import pytest

from tools.imports import LIBRARIES, ROOT
from tools.touched import changed, reached

TURNS = 4
# Cases of a function that run together.
TOGETHER = 6
CHECKER = "tests.typechecker.check"
# Targets of make, by their turn: they take minutes each.
BENCHMARKS = {1: "accuracy", 3: "accelerator"}
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


def checked_packages(number: int | None) -> list[str]:
    """Returns the packages whose annotations a whole run at a commit checks.

    Args:
        number: number of the commit, or None for all packages.
    """
    files = (file for name in LIBRARIES for file in sorted((ROOT / name).iterdir()))
    names = [
        f"{file.parent.name}.{file.stem}"
        for file in files
        if file.suffix == ".py" or (file / "__init__.py").exists()
    ]
    return names if number is None else names[number % TURNS :: TURNS]


def benchmarks(number: int | None) -> list[str]:
    """Returns the benchmarks that run beside the tests at the commit of a number."""
    turns = range(TURNS) if number is None else [number % TURNS]
    return [BENCHMARKS[turn] for turn in turns if turn in BENCHMARKS]


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


def main(what: str) -> None:
    """Prints what runs at the last commit, as words of a command line.

    Args:
        what: "annotations" or "benchmarks".
    """
    number = commit_number()
    packages = ",".join((*checked_packages(number), CHECKER))
    words = {
        "annotations": [f"--jaxtyping-packages={packages}"],
        "benchmarks": benchmarks(number),
    }
    print(*words[what])


if __name__ == "__main__":
    main(*sys.argv[1:])
