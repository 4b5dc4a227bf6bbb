"""The pytest plugin of these tests: which run, in which order, and what fails.

    @pytest.mark.slow(but=["dp2_tp2_domain2", "domain3"])

marks all cases of a test as slow except those with these ids.

    pytest --slow-since COMMIT

runs, of the slow tests, those that the change since that commit reaches
(`tools.touched.reached`); none where git lacks the commit.

    pytest --without-torch

leaves out files that import torch or CREDIT, and tests with the fixture `torch` or the
markers `reference` or `torch`; neither can then be imported.

With CI=true a skipped test is a failure: everything is installed there. Folders with
slow test files run first: worker processes take the tests file by file, and if a slow
file came last, one worker would run it while the others are idle.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jax
import jaxtyping
import pytest

from tests.support.memory import gibibytes
from tools.touched import changed, reached

# Slow tests of a file that run after a change.
MOST = 10
TESTS = Path(__file__).parent
# Folders of tests/ in their order; the others follow.
FIRST = (
    *("reliability", "training", "models", "benchmarks", "bridge", "parallel"),
    *("forecast", "evaluation"),
)
HIDDEN = ("torch", "credit")
# Memory of a process, in GiB, above which it drops its programs.
LIMIT = 5.0


def pytest_configure(config: pytest.Config) -> None:
    """Tells skips in CI; hides torch, in Python's way to say that there is none."""
    config.option.reportchars += "s" if in_ci() else ""
    if config.getoption("without_torch"):
        sys.modules.update(dict.fromkeys(filter(find_spec, HIDDEN)))  # type: ignore


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says what the numbers below do not contain."""
    lines = []
    if config.getoption("without_torch"):
        lines.append(f"left out: files and tests that need {' or '.join(HIDDEN)}")
    if base := config.getoption("slow_since"):
        files = changes(base)
        reach = "that {} files changed since {} reach" if files is not None else ""
        none = f"none, as this clone lacks {base}"
        lines.append(f"slow tests: {reach.format(len(files or ()), base) or none}")
    return lines


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
    """Refuses unknown cases, sorts, and deselects what does not run."""
    refuse_unknown_cases(config, items)
    items.sort(key=lambda item: rank(item.path))
    out = set()
    if config.getoption("without_torch"):
        out = {item for item in items if needs_hidden(item)}
    if base := config.getoption("slow_since"):
        out |= unreached(items, changes(base) or [])
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


def refuse_unknown_cases(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Refuses the id of a case that a test does not have.

    Where single tests are named on the command line, others may be missing.
    """
    if any("::" in argument for argument in config.args):
        return
    cases: dict[str, set[str]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], set()).add(case_of(item))
    for item in items:
        function = item.nodeid.partition("[")[0]
        for mark in exceptions(item):
            if unknown := set(mark.kwargs["but"]) - cases[function]:
                raise pytest.UsageError(
                    f"{function}: slow(but=...) names {sorted(unknown)}; the test has "
                    f"the cases {sorted(cases[function])}"
                )


def exceptions(item: pytest.Item) -> Iterator[pytest.Mark]:
    """Returns the marks of a test that except cases."""
    marks = [mark for mark in item.own_markers if mark.name == "slow"]
    yield from [mark for mark in marks if "but" in mark.kwargs]


def case_of(item: pytest.Item) -> str:
    """Returns the id of a case, or an empty text for a test without parameters."""
    return item.nodeid.partition("[")[2].removesuffix("]")


def rank(path: Path) -> int:
    """Returns the position in the order, from 0, of a file's folder in tests/."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


def unreached(items: Sequence[pytest.Item], files: list[Path]) -> set[pytest.Item]:
    """Returns the slow tests that a change does not reach."""
    slow: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.nodeid.partition("::")[0], []).append(item)
    words = {w for file in files for w in (file.stem, file.parent.name) if len(w) > 2}
    for file in reached(files, slow.keys()):
        # Of many cases those that name what changed come first.
        slow[file].sort(key=lambda item: not any(w in case_of(item) for w in words))
        del slow[file][:MOST]
    return {item for left in slow.values() for item in left}


def needs_hidden(item: pytest.Item) -> bool:
    """Whether a test needs torch or CREDIT by its marker or its fixtures."""
    markers = {marker.name for marker in item.iter_markers()}
    fixtures = getattr(item, "fixturenames", ())
    return "torch" in fixtures or not markers.isdisjoint({"reference", "torch"})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Makes of a file that cannot be imported without torch an empty one.

    Not if credit_jax imports it: that is an error.
    """
    report = yield
    call = getattr(report, "call", None)
    if not report.failed or call is None:
        return report
    error = call.excinfo.value
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    hidden = error is not None and (error.name or "").partition(".")[0] in HIDDEN
    if collector.config.getoption("without_torch") and hidden:
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        modules = [frame.f_globals.get("__name__", "") for frame in frames]
        if not any(module.partition(".")[0] == "credit_jax" for module in modules):
            report.outcome, report.longrepr, report.result = "passed", None, []
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Annotations are checked in the quick tests alone.

    The slow ones repeat these on further meshes and in whole runs, where the checks
    take a fifth of the time of tracing.
    """
    slow = item.get_closest_marker("slow") is not None
    jaxtyping.config.update("jaxtyping_disable", slow)
    return (yield)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drops programs after the last test of a file where memory runs high.

    JAX keeps every program that a process has compiled, here those of thousands of
    tests; glibc returns freed memory to the system only on `malloc_trim`.
    """
    last = nextitem is not None and nextitem.path != item.path
    if last and gibibytes("VmRSS") > LIMIT:
        jax.clear_caches()
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Lets a run with a skipped test or file fail with CI=true."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if in_ci() and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def in_ci() -> bool:
    """Whether the environment has CI=true, as set by `make test`."""
    return os.environ.get("CI", "").lower() in ("true", "1")
