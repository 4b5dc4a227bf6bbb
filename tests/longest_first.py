"""A plugin of pytest: folders whose files take minutes run before those of seconds.

Processes that share the tests file by file would else end with one of them alone in the
last long file. tests/conftest.py loads it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Folders of tests/, the one with the longest files first.
FIRST = (
    *("training", "models", "reliability", "benchmarks", "bridge", "parallel"),
    *("inference", "evaluation"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts whole folders; within one the order stays."""
    items.sort(key=lambda item: rank(item.path))


def rank(path: Path) -> int:
    """The place of the folder of tests/ that a file is in, from 0."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return FIRST.index(folder) if folder in FIRST else len(FIRST)
