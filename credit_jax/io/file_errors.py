"""Errors that name the file whose contents do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_of(path: str, *names: str) -> Iterator[None]:
    """Prepends a file and variables of it to errors of the body.

    Args:
        path: the file.
        names: the variables; one that occurs twice is listed once.

    Raises:
        ValueError: the body raises one.

    >>> with errors_of("levels.nc", "a", "b"):
    ...     raise ValueError("3 levels, expected 4")
    Traceback (most recent call last):
        ...
    ValueError: levels.nc: a, b: 3 levels, expected 4
    """
    try:
        yield
    except ValueError as error:
        listed = ", ".join(dict.fromkeys(names))
        raise ValueError(f"{path}: {listed}: {error}") from error
