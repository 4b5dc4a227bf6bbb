"""Files and folders that appear complete or not at all.

They are written to the same parent folder under a temporary name, which begins with a
dot and contains the host name and the process ID, and renamed when complete.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from credit_jax.io.folder_lock import is_running
from credit_jax.io.mirror import local_path


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path; its file replaces `path` if the block succeeds."""
    target = Path(local_path(str(path))).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.stem}.partial-{socket.gethostname()}-"
    # Files that dead processes of this host left behind.
    for other in target.parent.glob(f"{prefix}*{target.suffix}"):
        number = other.name.removeprefix(prefix).removesuffix(target.suffix)
        if number.isdigit() and not is_running(int(number)):
            _remove(other)
    partial = target.parent / f"{prefix}{os.getpid()}{target.suffix}"
    try:
        yield partial
        os.replace(partial, target)
    finally:
        _remove(partial)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary folder, which is renamed to `path` if the block succeeds."""
    with new_file(path) as partial:
        partial.mkdir()
        yield partial


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def refuse_existing(path: Path, option: str = "--out") -> None:
    """Checks that nothing but an empty folder is where an output would be."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise FileExistsError(
            f"{option} {path}: there is something already; give a new name"
        )


def move_aside(path: Path) -> Path:
    """Renames a file or folder to a name with the UTC time, and returns its path."""
    stem = f"{path.stem}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    stems = (f"{stem}_{n}" if n else stem for n in itertools.count())
    names = (path.with_name(f"{name}{path.suffix}") for name in stems)
    aside = next(name for name in names if not name.exists())
    os.rename(path, aside)
    return aside
