"""Detects moments of a training run inside of its first process.

An audit hook observes files being created, renamed and removed; a wrapper of the
display observes batches. At the n-th event of a kind the process sends a message, and
may stop in the middle of its work until it gets a signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from credit_jax.training.display import Display

TRAINING, VALIDATING = "training", "validating"
SAVING, DELETING, LOGGING = "saving", "deleting old checkpoints", "writing the log"
# Number of events of a kind in about two updates, a save, a row of the log.
NUM_EVENTS = {TRAINING: 4, VALIDATING: 2, SAVING: 30, DELETING: 30, LOGGING: 3}

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open", "shutil.rmtree")
_LOGS = (".training_log.", ".training_steps.")


def tell_at(
    moment: str, number: int, connection: Connection, *, stop: bool = False
) -> None:
    """Sends a message at an event of this process.

    Args:
        moment: key of `NUM_EVENTS`.
        number: of the event, from 1.
        connection: to send the message to.
        stop: whether to stop there until SIGCONT.
    """
    lock, left = threading.Lock(), number

    def happened() -> None:
        nonlocal left
        with lock:
            left -= 1
            reached = left == 0
        if reached:
            connection.send(moment)
            if stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    if moment in (TRAINING, VALIDATING):
        _watch_display(moment, happened)
    else:
        _watch_files(moment, happened)


def _watch_display(moment: str, happened: Callable[[], None]) -> None:
    title = {TRAINING: "epoch ", VALIDATING: "validation "}[moment]
    advance = Display.advance

    def watched(display: Display, *args: Any) -> None:
        advance(display, *args)
        if display._title.startswith(title):
            happened()

    Display.advance = watched


def _watch_files(moment: str, happened: Callable[[], None]) -> None:
    removing = threading.local()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _CHANGES or not args:
            return
        path = str(args[0])
        if event == "shutil.rmtree":
            removing.checkpoint = "/checkpoints/" in path
        writes = event != "open" or "w" in str(args[1])
        found = {
            # Within `shutil.rmtree` names are relative to an open folder.
            DELETING: event in ("os.remove", "os.rmdir")
            and "/" not in path
            and getattr(removing, "checkpoint", False),
            SAVING: writes and ".orbax-checkpoint-tmp" in path,
            LOGGING: writes and any(name in path for name in _LOGS),
        }
        if found[moment]:
            happened()

    sys.addaudithook(hook)
