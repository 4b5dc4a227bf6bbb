"""Storage that fails temporarily or permanently, or is slow."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.reader import Reader
from credit_jax.data.sources.stored_arrays import StoredArray
from credit_jax.io import retry
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import read_bytes
from credit_jax.io.retry import brief, is_transient, retried

STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSES", (0.001, 0.001, 0.001))


def failing(times: int, error: Exception) -> Callable[[], str]:
    """Returns a read that fails some times, then returns a string."""
    left = iter([error] * times)

    def read() -> str:
        if (found := next(left, None)) is not None:
            raise found
        return "text"

    return read


def test_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    assert retried(failing(3, STALE), "a.nc") == "text"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[1].startswith("a.nc: [Errno 116] Stale file handle; attempt 3 of 4 in")


def test_named_in_the_end() -> None:
    message = r"a.nc: cannot be read, 4 attempts in 0 s .*its storage does not answer"
    with pytest.raises(OSError, match=message):
        retried(failing(4, STALE), "a.nc")


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (STALE, True),
        (TimeoutError(), True),
        (OSError("Can't read data (errno = 5, 'Input/output error')"), True),
        (ValueError("UNAVAILABLE: server is busy"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError("Unable to synchronously open file (truncated file)"), False),
        (ValueError("DATA_LOSS: chunk cannot be decoded"), False),
    ],
)
def test_what_is_tried_again(error: Exception, transient: bool) -> None:
    assert is_transient(error) == transient
    if not transient:
        with pytest.raises(type(error)):
            retried(failing(1, error), "a.nc")


@pytest.mark.parametrize(
    ("encoding", "reader", "method"),
    [({}, StoredArray, "read"), ({"fletcher32": True}, xr.Variable, "isel")],
    ids=["by itself", "by xarray"],
)
def test_fields_of_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: dict[str, float],
    reader: type,
    method: str,
) -> None:
    path, values = str(tmp_path / "a.nc"), xr.Dataset({"t": ("y", np.arange(4.0))})
    values.to_netcdf(path, engine="h5netcdf", encoding={"t": encoding})
    opened, read = xr.open_dataset, getattr(reader, method)
    fails = failing(2, STALE), failing(2, STALE)
    reads: list[object] = []

    def open_later(*args: object, **options: object) -> xr.Dataset:
        fails[0]()
        return opened(*args, **options)  # type: ignore[arg-type]

    def read_later(self: object, *args: object) -> object:
        reads.append(args)
        fails[1]()
        return read(self, *args)

    monkeypatch.setattr(xr, "open_dataset", open_later)
    file = Reader("time", None).open(path)
    monkeypatch.setattr(reader, method, read_later)
    found = np.empty(2, np.float32)
    file.read("t", {"y": slice(1, 3)}, None, found)
    np.testing.assert_array_equal(found, [1.0, 2.0])
    assert len(reads) == 3, "two attempts that fail, and one that does not"

    def never(self: object, *args: object) -> None:
        raise STALE

    monkeypatch.setattr(reader, method, never)
    message = r"a.nc: variable 't': cannot be read, 4 attempts"
    with pytest.raises(OSError, match=message):
        file.read("t", {"y": slice(1, 3)}, None, found)


def test_files_that_are_not_there_or_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bytes(str(tmp_path / "none"))
    (tmp_path / "b.nc").write_bytes(b"\x89HDF\r\n\x1a\n but no more")
    with pytest.raises(ValueError, match="is it complete"):
        OpenFiles().dataset(tmp_path / "b.nc")


def test_a_slow_read_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(retry, "_watch", None)
    named = threading.Event()

    class Watcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("slow.nc: still being read after"):
                named.set()

    handler = Watcher()
    logging.getLogger("credit_jax").addHandler(handler)
    try:
        assert retried(lambda: named.wait(20), "slow.nc")
    finally:
        logging.getLogger("credit_jax").removeHandler(handler)


def test_a_long_error_is_one_short_line() -> None:
    page = "Server returned 503 Service Unavailable: <!DOCTYPE HTML>\n<html>\n" * 9
    error = OSError(page + "\n\nDebug source:\nGeneric {\n}")
    assert brief(error).startswith("Server returned 503 Service Unavailable: <!DOCTYPE")
    assert "\n" not in brief(error)
    assert len(brief(error)) == 304
    assert brief(OSError("Stale\n\nDebug source:\n{}")) == "Stale"
