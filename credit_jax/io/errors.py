"""Errors that say which file or config key they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_of(where: str, *names: str) -> Iterator[None]:
    """Prepends a place, and variables of it, to errors of the body.

    Args:
        where: a file, or the dotted key of a config.
        names: the variables; one that occurs twice is listed once.

    Raises:
        ValueError: the body raises one.
        FileNotFoundError: the body raises one.
        OSError: the body raises another one.

    >>> with errors_of("levels.nc", "a", "b"):
    ...     raise ValueError("3 levels, expected 4")
    Traceback (most recent call last):
        ...
    ValueError: levels.nc: a, b: 3 levels, expected 4
    """
    try:
        yield
    except (ValueError, OSError) as error:
        kinds = (ValueError, FileNotFoundError, OSError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        parts = (where, ", ".join(dict.fromkeys(names)), str(error))
        raise kind(": ".join(filter(None, parts))) from error
