"""Orbax's checkpoint manager, as `CheckpointStore` uses it.

Old checkpoints are removed in the background, none of which is incomplete or read.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint._src.serialization import tensorstore_utils

# Orbax has no option for the locks of TensorStore, and copies these for each save.
_TENSORSTORE_CONTEXTS: tuple[dict[str, Any], ...] = (
    tensorstore_utils._BASE_TS_CONTEXT,
    tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
)
# Name of the folder, beside the checkpoints.
REMOVED = "removed"
# File of a checkpoint that readers and the run that removes it lock.
DIGESTS = "digests.json"


class Pin:
    """A shared lock on a file, until it is closed or nobody holds it any more."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Unlocks the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    __del__ = close


def pin(checkpoint: Path) -> Pin | None:
    """Keeps a checkpoint from removal until what it returns is closed; None if gone."""
    try:
        file = Pin(descriptor := os.open(checkpoint / DIGESTS, os.O_RDONLY))
    except OSError:
        # Checkpoints of elsewhere may have no digests; no run removes them.
        return Pin(None) if checkpoint.is_dir() else None
    try:
        # Where the file system has no locks, nothing is locked.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        pass
    return file if checkpoint.is_dir() else None


@contextmanager
def unpinned(checkpoints: Iterable[Path]) -> Iterator[set[Path]]:
    """Yields those of some checkpoints that nobody reads; none is pinned meanwhile."""
    with ExitStack() as stack:
        free = set[Path]()
        for checkpoint in checkpoints:
            try:
                # Network file systems lock exclusively only what is open for writing.
                file = stack.enter_context((checkpoint / DIGESTS).open("r+b"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                pass
            free.add(checkpoint)
        yield free


class RemovedCheckpoints:
    """The folder that old checkpoints are renamed into before files are removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / REMOVED
        self._emptying: threading.Thread | None = None

    def clear(self) -> None:
        """Removes what a run that was killed left in it."""
        if jax.process_index() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def empty(self) -> None:
        """Removes the checkpoints in it, in a background thread."""
        if self._emptying:
            self._emptying.join()
        if jax.process_index() == 0 and self._folder.exists():
            remove = partial(shutil.rmtree, ignore_errors=True)
            paths = list(self._folder.iterdir())
            self._emptying = threading.Thread(target=lambda: [*map(remove, paths)])
            self._emptying.start()

    def close(self) -> None:
        """Waits for the thread and removes the folder."""
        if self._emptying:
            self._emptying.join()
            with suppress(OSError):
                self._folder.rmdir()


# Number of newest checkpoints from within an epoch that are kept.
NUM_TEMPORARY = 2
_PAUSE = 0.01  # seconds between polls of a save in progress


class Preservation:
    """Orbax's policy of which checkpoints to keep: the newest, the best, or all."""

    def __init__(self, num_latest: int, keep_all: bool) -> None:
        self.num_latest = num_latest
        self.keep_all = keep_all
        self.best_step: int | None = None
        self.temporary: set[int] = set()

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """See `orbax.checkpoint.checkpoint_managers.PreservationPolicy`."""
        del context
        steps = [info.step for info in checkpoints]
        passing = [step for step in steps if step in self.temporary]
        lasting = [step for step in steps if step not in self.temporary]
        preserved = {
            self.best_step,
            *passing[-NUM_TEMPORARY:],
            *lasting[-self.num_latest :],
        }
        preserved.update(lasting if self.keep_all else ())
        return [step in preserved for step in steps]


class Manager(ocp.CheckpointManager):
    """Orbax's manager, but a failed write of this process raises at once."""

    # Orbax's threads wait for those of the other processes before they report an error,
    # and those wait for the failed write.
    failure: BaseException | None = None
    # Whether checkpoints were to be removed, but somebody reads them.
    has_postponed = False

    def _finalize(self, step: int, steps_to_remove: list[int]) -> None:
        leads = jax.process_index() == 0
        paths = {Path(self.directory) / str(s): s for s in steps_to_remove if leads}
        with unpinned(paths) as free:
            super()._finalize(step, [paths[path] for path in free])
        self.has_postponed = len(free) < len(paths)

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except BaseException as error:
            self.failure = error
            raise

    def wait_until_finished(self) -> None:
        """Waits for the last save; raises an error of this process without waiting."""
        while jax.process_count() > 1 and self.is_saving_in_progress():
            if self.failure is not None:
                raise self.failure
            self.check_for_errors()
            time.sleep(_PAUSE)
        super().wait_until_finished()


def open_manager(
    folder: Path,
    preservation: Preservation,
    *,
    removed: str,  # subfolder that the others are renamed into
    clean: bool,  # removes what earlier processes left incomplete
    written: Callable[[], None],  # before it is renamed
) -> Manager:
    """Opens a folder of checkpoints, which are saved asynchronously."""
    # Makes Orbax write a replicated array from its first replica. By default each
    # replica writes a slice of the array, cut by a separate program that XLA compiles
    # at the first save: 600 of them for the demo on 8 devices.
    handler = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
    logger = logging.getLogger("absl")
    is_other = lambda log: "Type handler registry" not in log.getMessage()  # noqa: E731
    # Orbax warns of every handler that replaces another one.
    logger.addFilter(is_other)
    try:
        ocp.type_handlers.register_type_handler(jax.Array, handler, override=True)
    finally:
        logger.removeFilter(is_other)
    # Orbax locks the manifests of its arrays, and file systems without locks cannot
    # save. No two processes write one manifest: the folder of a run has its own lock
    # (`io.folder_lock`), and each process a folder in it.
    for context in _TENSORSTORE_CONTEXTS:
        context["file_io_locking"] = {"mode": "none"}
    options = ocp.CheckpointManagerOptions(
        preservation_policy=checkpoint_managers.AnyPreservationPolicy([preservation]),
        cleanup_tmp_directories=clean,
        todelete_subdir=removed,
        async_options=ocp.options.AsyncOptions(post_finalization_callback=written),
    )
    return Manager(folder, options=options)
