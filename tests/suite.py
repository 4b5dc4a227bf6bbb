"""A pytest plugin: which slow tests run, in which order, and how much memory they hold.

    @pytest.mark.slow(but=["dp2_tp2_domain2", "domain3"])

marks all cases of a test as slow except those with these ids.

    pytest --slow-since COMMIT

runs, of the slow tests, those that the change since that commit reaches
(`tools.touched.reached`); none where git lacks the commit.

Folders with slow test files run first: worker processes take the tests file by file,
and if a slow file came last, one worker would run it while the others are idle.

JAX keeps every program that a process has compiled, here those of thousands of tests:
its caches are cleared when memory runs high. `tests/conftest.py` loads this plugin.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pytest

from tools.touched import changed, reached

# Slow tests of a file that run after a change.
MOST = 10


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which slow tests run."""
    if (base := config.getoption("slow_since")) is None:
        return None
    if (files := changes(base)) is None:
        return f"slow tests: none, as this clone lacks {base}"
    return f"slow tests: those that {len(files)} files changed since {base} reach"


def changes(base: str) -> list[Path] | None:
    """Returns the files that differ from a commit, or None without that commit."""
    try:
        return changed(base)
    except subprocess.CalledProcessError:
        return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Takes the mark from the cases that run on every commit."""
    for mark in exceptions(item):
        if case_of(item) in mark.kwargs["but"]:
            item.own_markers.remove(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Refuses unknown cases, sorts, and deselects what a change does not reach."""
    refuse_unknown_cases(config, items)
    items.sort(key=lambda item: rank(item.path))
    if (base := config.getoption("slow_since")) is None:
        return
    slow: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(file_of(item), []).append(item)
    files = changes(base) or []
    words = {w for file in files for w in (file.stem, file.parent.name) if len(w) > 2}
    for file in reached(files, slow.keys()):
        # Of many cases those that name what changed come first.
        slow[file].sort(key=lambda item: not any(w in case_of(item) for w in words))
        del slow[file][:MOST]
    out = [item for left in slow.values() for item in left]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def refuse_unknown_cases(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Refuses the id of a case that a test does not have.

    Where single tests are named on the command line, others may be missing.
    """
    if any("::" in argument for argument in config.args):
        return
    cases: dict[str, set[str]] = {}
    for item in items:
        cases.setdefault(function_of(item), set()).add(case_of(item))
    for item in items:
        function = function_of(item)
        for mark in exceptions(item):
            if unknown := set(mark.kwargs["but"]) - cases[function]:
                raise pytest.UsageError(
                    f"{function}: slow(but=...) names {sorted(unknown)}; the test has "
                    f"the cases {sorted(cases[function])}"
                )


def exceptions(item: pytest.Item) -> Iterator[pytest.Mark]:
    """Returns the marks of a test that except cases."""
    yield from [
        mark
        for mark in item.own_markers
        if mark.name == "slow" and "but" in mark.kwargs
    ]


def file_of(item: pytest.Item) -> str:
    """Returns the path of a test's file in the repository."""
    return item.nodeid.partition("::")[0]


def case_of(item: pytest.Item) -> str:
    """Returns the id of a case, or an empty text for a test without parameters."""
    return item.nodeid.partition("[")[2].removesuffix("]")


def function_of(item: pytest.Item) -> str:
    """Returns the node id of a test without that of the case."""
    return item.nodeid.partition("[")[0]


TESTS = Path(__file__).parent
# Folders of tests/ in their order; the others follow.
FIRST = (
    *("reliability", "training", "models", "benchmarks", "bridge", "parallel"),
    *("forecast", "evaluation"),
)


def rank(path: Path) -> int:
    """Returns the position in the order, from 0, of a file's folder in tests/."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


LIMIT = 5e9  # bytes of memory in use
STEP = 1e9  # bytes more than after the last time
STATM = Path("/proc/self/statm")

_after_last_time = 0.0


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drops programs after the last test of a file; others compile their own."""
    if nextitem is not None and nextitem.path != item.path:
        drop_programs()


def drop_programs() -> None:
    """Clears JAX's caches above `LIMIT`, and again when memory grew by `STEP`."""
    global _after_last_time
    if resident() > max(LIMIT, _after_last_time + STEP):
        jax.clear_caches()
        gc.collect()
        return_freed_memory()
        _after_last_time = resident()


def return_freed_memory() -> None:
    """Returns freed memory to the system, which glibc does only on `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> float:
    """Returns the resident memory of this process in bytes, or 0 outside Linux."""
    if not STATM.exists():
        return 0.0
    return float(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
