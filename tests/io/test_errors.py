"""Errors that say where they come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jax.errors import JaxRuntimeError

from credit_jax.io.errors import WriteError, errors_of, write_errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("3 levels"), ValueError),
        (UnicodeError("3 levels"), ValueError),
        (FileNotFoundError("3 levels"), FileNotFoundError),
        (PermissionError("3 levels"), OSError),
    ],
)
def test_the_place_stands_before_the_message(error, kind):
    with pytest.raises(kind, match=r"^a\.nc: 3 levels$") as raised, errors_of("a.nc"):
        raise error
    assert type(raised.value) is kind
    located = errors_of("a.nc", "T", "U", "T")
    with pytest.raises(kind, match=r"^a\.nc: T, U: 3 levels$"), located:
        raise error


def test_other_errors_pass():
    with pytest.raises(KeyError, match="T"), errors_of("a.nc"):
        raise KeyError("T")


def test_errors_of_writing_say_what_and_why(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with (
        pytest.raises(
            WriteError, match=r"log.csv: could not be written: No space left"
        ),
        write_errors(path),
    ):
        raise OSError(28, os.strerror(28))
    with (
        pytest.raises(WriteError, match="File too large; make room"),
        write_errors(path, "make room"),
    ):
        raise ValueError("ABORTED [os_error_code='27' key='d']")
    with (
        pytest.raises(WriteError, match=r"written: File too large$"),
        write_errors(path),
    ):
        raise RuntimeError("Can't close file (time = Wed, errno = 27, buf = 0x7)")


def test_a_collective_that_fails_is_none(tmp_path: Path) -> None:
    """The peer of this process has died, which is no write error."""
    with pytest.raises(JaxRuntimeError), write_errors(tmp_path):
        raise JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed")
