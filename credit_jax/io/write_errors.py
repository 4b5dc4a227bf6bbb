"""What failed where a file could not be written, in one error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jax.errors import JaxRuntimeError

# TensorStore's number of the system's error, in the text of its own.
_NUMBER = re.compile(r"os_error_code='(\d+)'")


class WriteError(OSError):
    """Something could not be written: a full disk, a quota, lost permission."""


@contextmanager
def write_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Raises a `WriteError` for the errors of writing in the block.

    Those are OSErrors, and the RuntimeErrors and ValueErrors that PyTorch, Orbax and
    TensorStore raise in their place. Errors of JAX's runtime, such as that of a
    collective in a save, are no errors of writing.

    Args:
        path: what is written, for the error.
        advice: what to do, behind it.
    """
    try:
        yield
    except (WriteError, JaxRuntimeError):
        # Also of JAX is what a process says whose peer has died.
        raise
    except (OSError, RuntimeError, ValueError) as error:
        text = f"{path}: could not be written: {_cause(error)}"
        raise WriteError(f"{text}; {advice}" if advice else text) from error


def _cause(error: BaseException) -> str:
    """The system's words for an error, if it has some."""
    found = _NUMBER.search(str(error))
    if found is not None:
        return os.strerror(int(found.group(1)))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0]
