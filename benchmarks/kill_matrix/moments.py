"""Detects moments of a command inside of one of its processes.

An audit hook observes files being created, renamed and removed; wrappers of the display
and of the manager of checkpoints observe batches and saves. At the n-th event of a kind
the process sends a message, and may stop in the middle of its work until it gets a
signal.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from credit_jax.checkpoint.store import Manager
from credit_jax.training.display import Display

if TYPE_CHECKING:
    from benchmarks.kill_matrix.starts import Trigger

TRAINING, VALIDATING = "training", "validating"
SAVING, DELETING, LOGGING = "saving", "deleting old checkpoints", "writing the log"
# Of every process, between its collectives and barriers; files are made by the first.
WITHIN_SAVE = "within a save"
# Of other commands than `train`: files below a folder.
WRITING = "writing files"
# Number of events of a kind in about two updates, a save, a row of the log.
NUM_EVENTS = {
    TRAINING: 4,
    VALIDATING: 2,
    SAVING: 30,
    WITHIN_SAVE: 12,
    DELETING: 30,
    LOGGING: 3,
}

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open", "shutil.rmtree")
_LOGS = (".training_log.", ".training_steps.")


def tell_at(trigger: Trigger, connection: Connection) -> None:
    """Sends a message at an event of this process.

    Args:
        trigger: kind and number of the event, and whether to stop there until SIGCONT;
            number 0 sends the number of all events at the end.
        connection: connection to send the message to.
    """
    lock, seen = threading.Lock(), 0

    def happened() -> None:
        nonlocal seen
        with lock:
            seen += 1
            reached = seen == trigger.number
        if reached:
            connection.send(trigger.moment)
            if trigger.stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    if not trigger.number:
        atexit.register(lambda: connection.send(seen))
    if trigger.moment in (TRAINING, VALIDATING):
        _watch_display(trigger.moment, happened)
    elif trigger.moment == WITHIN_SAVE:
        _watch_saves(happened)
    else:
        _watch_files(trigger, happened)


def _watch_saves(happened: Callable[[], None]) -> None:
    """Counts beginnings and ends of the parts of a save, in both of its threads."""

    def watched(part: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(part)
        def run(*args: Any, **options: Any) -> Any:
            happened()
            result = part(*args, **options)
            happened()
            return result

        return run

    for name in ("save", "_wait_for_checkpointers", "_finalize"):
        setattr(Manager, name, watched(getattr(Manager, name)))


def _watch_display(moment: str, happened: Callable[[], None]) -> None:
    title = {TRAINING: "epoch ", VALIDATING: "validation "}[moment]
    advance = Display.advance

    def watched(display: Display, *args: Any) -> None:
        advance(display, *args)
        if display._title.startswith(title):
            happened()

    Display.advance = watched


def _watch_files(trigger: Trigger, happened: Callable[[], None]) -> None:
    removing = threading.local()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _CHANGES or not args:
            return
        path = str(args[0])
        if event == "shutil.rmtree":
            removing.checkpoint = "/checkpoints/" in path
        writes = event != "open" or "w" in str(args[1])
        moments = {
            # Within `shutil.rmtree` names are relative to an open folder.
            DELETING: event in ("os.remove", "os.rmdir")
            and "/" not in path
            and getattr(removing, "checkpoint", False),
            SAVING: writes and ".orbax-checkpoint-tmp" in path,
            LOGGING: writes and any(name in path for name in _LOGS),
            WRITING: writes and path.startswith(trigger.below),
        }
        if moments[trigger.moment]:
            happened()

    sys.addaudithook(hook)
