"""Errors that say which file or config key they are about; those of writing files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jax.errors import JaxRuntimeError

from credit_jax.io.mirror import claim, local_path


@contextmanager
def errors_of(origin: str, *names: str) -> Iterator[None]:
    """Prepends a place, and variables of it, to errors: "levels.nc: a, b: ..."."""
    try:
        yield
    except (ValueError, OSError) as error:
        kinds = (ValueError, FileNotFoundError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        parts = (origin, ", ".join(dict.fromkeys(names)), str(error))
        raise kind(": ".join(filter(None, parts))) from error


def nearest_files(path: str) -> str:
    """What the folder of a path holds that is not there, or the nearest one above."""
    folder = parent = os.path.dirname(path) or "."
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "."
    absent = "" if folder == parent else f"the folder {parent!r} does not exist"
    if absent and folder == os.path.dirname(folder):  # the root is no help
        return absent
    entries = sorted(os.listdir(folder))
    listed = ", ".join(entries[:8]) + (", ..." if len(entries) > 8 else "")
    holds = f"{folder!r} holds: {listed or 'nothing'}"
    return f"{absent}; {holds}" if absent else holds


# The errno in the texts of TensorStore's and HDF5's errors.
_NUMBER = re.compile(r"(?:os_error_code='|errno = )(\d+)")


class WriteError(OSError):
    """Something could not be written: a full disk, a quota, lost permission."""


@contextmanager
def write_errors(path: str | Path, advice: str = "") -> Iterator[None]:
    """Converts errors of writing in the block to `WriteError`."""
    try:
        yield
    except (WriteError, JaxRuntimeError):
        # A process whose peer has died gets a JaxRuntimeError, too.
        raise
    # PyTorch, Orbax and TensorStore raise RuntimeErrors and ValueErrors, too.
    except (OSError, RuntimeError, ValueError) as error:
        # The operating system's message, if it is known, or else the first line.
        match, cause = _NUMBER.search(str(error)), str(error).split("\n")[0]
        number = error.errno if isinstance(error, OSError) else None
        number = int(match.group(1)) if match is not None else number
        cause = cause if number is None else os.strerror(number)
        cause = getattr(error, "strerror", None) or cause
        text = f"{path}: could not be written: {cause}"
        failure = WriteError(f"{text}; {advice}" if advice else text)
        failure.errno = number  # of the operating system, if known
        raise failure from error


@contextmanager
def writable_folder(path: str | Path, option: str) -> Iterator[Path]:
    """Makes a folder for the files of the block; checks that it can be written to."""
    folder = Path(path)
    try:
        folder = Path(local_path(os.path.expandvars(path))).expanduser().resolve()
        new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        claim(folder)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
    except OSError as error:
        raise ValueError(
            f"{option}: cannot write to {folder}: {error.strerror}; choose another "
            "folder"
        ) from None
    try:
        yield folder
    except BaseException:
        # Folders that it made, if they are empty.
        with suppress(OSError):
            for parent in new:
                parent.rmdir()
        raise
