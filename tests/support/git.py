"""Repositories of git for tests."""

import subprocess
from collections.abc import Callable
from pathlib import Path

_AS = ("-c", "user.name=test", "-c", "user.email=test@localhost")


def new_repository(folder: Path) -> Callable[[str], None]:
    """Makes a repository, and returns a function that commits a new file there."""

    def git(*command: str) -> None:
        subprocess.run(("git", *_AS, *command), cwd=folder, check=True)

    def commit(name: str) -> None:
        (folder / name).write_text(name)
        git("add", name)
        git("commit", "--quiet", "--message", name)

    git("init", "--quiet")
    return commit
