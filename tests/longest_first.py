"""A pytest plugin that runs folders with slow test files first.

Worker processes take the tests file by file. If a slow file came last, one worker would
run it while the others are idle. `tests/conftest.py` loads this plugin.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Folders of tests/ in their order; the others follow.
FIRST = (
    *("reliability", "training", "models", "benchmarks", "bridge", "parallel"),
    *("forecast", "evaluation"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts folders; the order within each is unchanged."""
    items.sort(key=lambda item: rank(item.path))


def rank(path: Path) -> int:
    """Returns the position in the order, from 0, of a file's folder in tests/."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return FIRST.index(folder) if folder in FIRST else len(FIRST)
