"""Slow test files run first."""

from types import SimpleNamespace
from typing import Any

from tests.longest_first import FIRST, TESTS, pytest_collection_modifyitems


def test_long_folders_come_first_and_files_keep_their_order(tmp_path: Any) -> None:
    names = ("config/b", "models/b", "test_a", "training/b", "models/a/c", "config/a")
    files = [TESTS / f"{name}.py" for name in names]
    items: list[Any] = [SimpleNamespace(path=path) for path in (tmp_path, *files)]
    pytest_collection_modifyitems(items)
    assert [item.path for item in items] == [
        *(files[3], files[1], files[4]),
        *(tmp_path, files[0], files[2], files[5]),
    ]


def test_every_folder_that_runs_first_is_there() -> None:
    assert all((TESTS / folder).is_dir() for folder in FIRST)
