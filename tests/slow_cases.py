"""A pytest plugin for tests of which some cases run on every commit, and others do not.

    @pytest.mark.slow(but=["dp2_tp2_domain2", "domain3"])

marks all cases of a test as slow except those with these ids. `tests/conftest.py` loads
this plugin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Takes the mark from the cases that run on every commit."""
    for mark in exceptions(item):
        if case_of(item) in mark.kwargs["but"]:
            item.own_markers.remove(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> None:
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


def case_of(item: pytest.Item) -> str:
    """Returns the id of a case, or an empty text for a test without parameters."""
    return item.nodeid.partition("[")[2].removesuffix("]")


def function_of(item: pytest.Item) -> str:
    """Returns the node id of a test without that of the case."""
    return item.nodeid.partition("[")[0]
