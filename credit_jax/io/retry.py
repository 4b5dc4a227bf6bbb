"""Retries reads when storage fails temporarily, and logs slow ones."""

from __future__ import annotations

import errno
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds between attempts, with a jitter of a quarter, so that the processes of a run
# do not all retry at once.
PAUSES = (1.0, 4.0, 16.0)
SLOW_SECONDS = 60.0
_JITTER = 0.25
_LONGEST = 300  # characters of an error in a message

_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EINTR,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EREMOTEIO,
        errno.EMFILE,
        errno.ENFILE,
    }
)
# HDF5, TensorStore and obstore give the cause only in the text of the error.
_WORDS = (
    "Input/output error",
    "Stale file handle",
    "Connection reset",
    "connection closed",
    "error sending request",
    "timed out",
    "timeout",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "429 Too Many Requests",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Timeout",
)
_ACCOUNT = "\n\nDebug source:"
_LOG = logging.getLogger("credit_jax")


def is_transient(error: BaseException) -> bool:
    """Whether a read that failed with this error may succeed when retried."""
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    # obstore's account of itself has settings, such as a timeout, in any error.
    text = str(error).partition(_ACCOUNT)[0]
    return any(words in text for words in _WORDS)


def brief(error: BaseException) -> str:
    """Returns the text of an error on one line of at most `_LONGEST` characters."""
    # Errors of obstore contain pages of HTML, and then Rust's account of themselves.
    text = " ".join(str(error).partition(_ACCOUNT)[0].split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def retried(read: Callable[[], T], path: str) -> T:
    """Returns the result of `read`, retried after transient errors; logs slow reads."""
    global _watch
    with _watch_lock:
        if _watch is None:
            _watch = threading.Thread(target=_name_slow, name="slow reads", daemon=True)
            _watch.start()
    began = time.monotonic()
    for attempt, pause in enumerate((*PAUSES, None), 1):
        number = next(_numbers)
        _reads[number] = path, time.monotonic()
        try:
            try:
                return read()
            finally:
                del _reads[number]
        except Exception as error:
            if not is_transient(error):
                raise
            if pause is None:
                raise OSError(
                    f"{path}: cannot be read, {attempt} attempts in "
                    f"{time.monotonic() - began:.0f} s ({type(error).__name__}: "
                    f"{brief(error)}); its storage does not answer: try again later"
                ) from error
            pause *= random.uniform(1 - _JITTER, 1 + _JITTER)
            _LOG.warning(
                "%s: %s; attempt %d of %d in %.1f s",
                path,
                brief(error),
                attempt + 1,
                len(PAUSES) + 1,
                pause,
            )
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


_numbers = itertools.count()
_reads: dict[int, tuple[str, float]] = {}
_watch_lock = threading.Lock()
_watch: threading.Thread | None = None


def _name_slow() -> None:
    """Checks the reads in progress in an endless loop, and logs slow ones."""
    due: dict[int, float] = {}
    while True:
        time.sleep(SLOW_SECONDS / 12)
        going_on = dict(_reads)
        due = {number: at for number, at in due.items() if number in going_on}
        for number, (path, began) in going_on.items():
            seconds = time.monotonic() - began
            if seconds >= due.get(number, SLOW_SECONDS):
                due[number] = 2 * seconds
                _LOG.warning("%s: still being read after %.0f s", path, seconds)
