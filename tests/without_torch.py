"""A pytest plugin that leaves out the tests that need torch or CREDIT.

`tests/conftest.py` loads it for `pytest --without-torch`, as `make newest` runs it.
Neither can then be imported. Left out are files that import one of them, and tests with
the markers `reference` or `torch`, or with the fixtures `torch` or `credit`. Tests fail
that import one without saying so, or for which credit_jax imports one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from importlib.util import find_spec
from traceback import walk_tb
from typing import Any

import pytest

HIDDEN = ("torch", "credit")
LIBRARY = "credit_jax"

for _name in filter(find_spec, HIDDEN):
    # Python's way to say that there is no such module.
    sys.modules[_name] = None  # type: ignore[assignment]


def pytest_report_header() -> str:
    """Says what the numbers below do not contain."""
    return f"left out: files and tests that need {' or '.join(HIDDEN)}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, Any, Any]:
    """Makes of a file that cannot be imported without them an empty one."""
    report = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and _imports_hidden(call.excinfo.value):
        report.outcome, report.longrepr, report.result = "passed", None, []
    return report


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselects tests of other files by their marker and their fixtures."""
    out = [item for item in items if _needs_hidden(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if not _needs_hidden(item)]


def _needs_hidden(item: pytest.Item) -> bool:
    markers = {marker.name for marker in item.iter_markers()}
    fixtures = getattr(item, "fixturenames", ())
    return "torch" in fixtures or not markers.isdisjoint({"reference", "torch"})


def _imports_hidden(error: BaseException | None) -> bool:
    """Whether an import of a hidden module failed in other code than the library."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if error is None or (error.name or "").partition(".")[0] not in HIDDEN:
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    return not any(module.partition(".")[0] == LIBRARY for module in modules)
