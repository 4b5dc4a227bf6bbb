"""Faults inside of a process: functions that it calls before it trains."""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from credit_jax.checkpoint import CheckpointStore
from credit_jax.training.display import Display
from credit_jax.training.loggers import StepRecords

_NOBODY = 65534
_DAY = 86400.0


def full_disk() -> None:
    """Makes opening of files fail from the second checkpoint on."""
    _fail_to(errno.ENOSPC, lambda event, args: event == "open" and "w" in str(args[1]))


def folder_becomes_read_only() -> None:
    """Makes the folder of checkpoints read-only from the second checkpoint on."""

    def forbid(store: CheckpointStore) -> None:
        store.folder.chmod(0o555)
        become_nobody()

    _at_second_save(forbid)


def become_nobody() -> None:
    """Drops the privileges of root, who can write everywhere."""
    if os.geteuid() == 0:
        os.seteuid(_NOBODY)


def background_write_fails() -> None:
    """Makes renaming fail in the writer's thread from the second checkpoint on."""
    _fail_to(errno.EIO, lambda event, _: event == "os.rename")


def _fail_to(number: int, is_it: Callable[[str, tuple[Any, ...]], bool]) -> None:
    """Makes changes of unfinished checkpoints fail from the second one on."""
    started: list[bool] = []
    _at_second_save(lambda _: started.append(True))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        path = str(args[0]) if args else ""
        if started and ".orbax-checkpoint-tmp" in path and is_it(event, args):
            raise OSError(number, os.strerror(number), path)

    sys.addaudithook(hook)


def clock_jumps() -> None:
    """Sets the wall clock back a day at update 3, and ahead ten days at update 6."""
    jumped = [0.0]
    real, advance, initialize = time.time, Display.advance, StepRecords.__init__
    seen: list[None] = []

    def watched(display: Display, *args: Any) -> None:
        advance(display, *args)
        seen.append(None)
        jumped[0] = {3: -_DAY, 6: 10 * _DAY}.get(len(seen), jumped[0])

    def wall() -> float:
        return real() + jumped[0]

    Display.advance = watched
    StepRecords.__init__ = functools.partialmethod(initialize, wall=wall)
    time.time = wall


def _at_second_save(action: Callable[[CheckpointStore], object]) -> None:
    save, steps = CheckpointStore.save, list[int]()

    def counted(store: CheckpointStore, step: int, *rest: Any) -> None:
        steps.append(step)
        if len(steps) == 2:
            store.wait()
            action(store)
        save(store, step, *rest)

    CheckpointStore.save = counted
