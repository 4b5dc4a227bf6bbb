"""A pytest plugin by which a skipped test, or a skipped file, fails.

`tests/conftest.py` loads it if the environment has CI=true, as set by `make test`. In
CI everything is installed, so that a skip means that something is missing.
"""

from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return _failed_if_skipped((yield))


def _failed_if_skipped(report: Report) -> Report:
    if report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which is a failure: {reason}"
    return report
