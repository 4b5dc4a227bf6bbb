"""The checkpoints of one run, and trees of arrays in them."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import logging
import operator
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint._src import asyncio_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from credit_jax.checkpoint.progress import Progress
from credit_jax.io.activity import activity
from credit_jax.io.digests import find_damage, record_files, write_records
from credit_jax.io.errors import write_errors
from credit_jax.parallel.processes.coordinator import of_first, process_number

# Orbax has no option for the locks of TensorStore, and copies these for each save.
_TENSORSTORE_CONTEXTS: tuple[dict[str, Any], ...] = (
    tensorstore_utils._BASE_TS_CONTEXT,
    tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
)
_run_sync = asyncio_utils.run_sync
_PATIENCE = 10  # seconds for the other reads or writes, where one has failed


async def _to_the_end(reads_or_writes: Coroutine[Any, Any, Any]) -> Any:
    """Awaits what Orbax does; after an error, what else of it is under way, too."""
    try:
        return await reads_or_writes
    except Exception:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        ended = asyncio.gather(*others, return_exceptions=True)
        await asyncio.wait([ended], timeout=_PATIENCE)
        raise


# Orbax closes the event loop after the first error, and each further callback of
# TensorStore into it is a traceback on stderr.
asyncio_utils.run_sync = lambda coroutine: _run_sync(_to_the_end(coroutine))

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


MAX_LISTED = 8


def as_nested_dict(tree: PyTree) -> Any:
    """The leaves of a tree in nested dicts, by path; nodes without leaves drop out."""
    # Stages of an optimizer without state, such as clipping, are not in a checkpoint.
    nested: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
        if not path:
            return leaf
        *parents, last = _names(path)
        node = nested
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return nested


def from_nested_dict(nested: Any, like: PyTree) -> PyTree:
    """The inverse of `as_nested_dict`: a tree with the nodes and keys of `like`."""

    def stored(path: tuple[Any, ...], leaf: Any) -> Any:
        array = functools.reduce(operator.getitem, _names(path), nested)
        return jax.random.wrap_key_data(array) if is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(stored, like)


def _names(path: tuple[Any, ...]) -> list[str]:
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def restore_targets(tree: PyTree) -> PyTree:
    """Shape, dtype and sharding of every leaf; of random keys, those of integers."""

    def target(leaf: Any) -> jax.ShapeDtypeStruct | np.ndarray:
        if isinstance(leaf, np.ndarray):
            return leaf
        sharding = getattr(leaf, "sharding", None)
        plain = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
        return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=sharding)

    return jax.tree.map(target, tree)


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is a typed random key, or the description of one."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def differences(stored: PyTree, expected: PyTree) -> list[str]:
    """One line for each array that is missing, unknown, or of another shape."""
    have, want = shapes_by_path(stored), shapes_by_path(expected)
    missing = [f"{p}: missing, expected {s}" for p, s in want.items() if p not in have]
    unknown = [
        f"{p}: {s} is not in the model" for p, s in have.items() if p not in want
    ]
    other = [
        f"{p}: got {have[p]}, expected {shape}"
        for p, shape in want.items()
        if p in have and have[p] != shape
    ]
    lines = other + missing + unknown
    if len(lines) > MAX_LISTED:
        lines = [*lines[:MAX_LISTED], f"and {len(lines) - MAX_LISTED} more"]
    return lines


def shapes_by_path(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Shape of every leaf by its path, names joined by dots."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in leaves
    }


T = TypeVar("T")

FOLDER = "checkpoints"
WEIGHTS, EMA, OPTIMIZER, PROGRESS = "weights", "ema", "optimizer", "progress"
LOSS_SCALE, LOSS, EMA_STATS = "loss_scale", "loss", "ema_batch_stats"
ADAPTERS = "adapters"
# Name of the state of Adam within that of the optimizer.
ADAM = "adam"
ITEMS = (WEIGHTS, EMA, EMA_STATS, ADAPTERS, OPTIMIZER, LOSS_SCALE, LOSS)
# Raised when damaged files are read, besides the bare `Exception` of Orbax.
_OF_BAD_FILES = (ValueError, LookupError, TypeError, AttributeError)
# Orbax's file of timestamps, which is changed again when a checkpoint is renamed.
_WRITTEN_LATER = "_CHECKPOINT_METADATA"

# How often a reader lists a folder in which it finds no checkpoint.
_LISTINGS = 3


class CheckpointStore:
    """Reads and writes the checkpoints below `save_loc` (`credit_jax.checkpoint`).

    A checkpoint is written under a temporary name and renamed when it is complete.
    Only then are older ones removed, after they are renamed. A run killed while it
    saves or removes therefore loses nothing and leaves no incomplete checkpoint.

    >>> credit_jax.CheckpointStore("RUN").steps()
    [3]
    """

    def __init__(
        self,
        save_loc: str | Path,
        *,
        num_latest: int = 2,
        keep_all: bool = False,
        keep_best: bool = True,
        verify: bool = True,
        clean: bool = False,
        pins: bool = False,
    ) -> None:
        """Opens the folder if it exists; the first save creates it.

        Args:
            save_loc: folder of the run.
            num_latest: newest checkpoints to keep, at least one; in addition, the
                newest two from within an epoch.
            keep_all: keep every checkpoint from the end of an epoch.
            keep_best: keep the one that `Progress.best_step` names.
            verify: compare files with their digests before they are read.
            clean: remove unfinished files of a killed run; only if no other run can be
                saving in the folder.
            pins: keep checkpoints that are read here from being removed by a run that
                saves in the folder, until `close`.
        """
        self._clean = clean
        self._pins = pins
        self._pinned: dict[int, Pin] = {}
        self.folder = Path(save_loc).resolve() / FOLDER
        self._keep_best = keep_best and not pins  # readers remove nothing
        self._preservation = Preservation(num_latest, keep_all)
        self._verify = verify
        self._damage: dict[int, list[str]] = {}
        self._written: int | None = None
        self._removed = RemovedCheckpoints(self.folder)
        self._manager: Manager | None = None
        if self.folder.exists():
            self._open()

    def _open(self) -> Manager:
        if self._manager is None:
            if self._clean:
                self._removed.clear()
            self._manager = self._listed(
                lambda: open_manager(
                    self.folder,
                    self._preservation,
                    removed=REMOVED,
                    clean=self._clean,
                    written=self._record,
                )
            )
            if self._keep_best:
                self._preservation.best_step = self.best_step()
        return self._manager

    def _listed(self, read: Callable[[], T]) -> T:
        """Lists the folder again where a run removes a checkpoint meanwhile."""
        while True:
            try:
                return read()
            except FileNotFoundError:
                if not (self._pins and self.folder.is_dir()):
                    raise

    @cached_property
    def _temporary(self) -> set[int]:
        """The checkpoints from within an epoch, and unreadable ones."""
        # Existing ones are read once, and only by a store that saves.
        by_step = {step: self._readable_progress(step) for step in self.steps()}
        return {
            step
            for step, progress in by_step.items()
            if progress is None or progress.batches
        }

    def steps(self) -> list[int]:
        """The complete checkpoints, named by the micro-batches seen."""
        return sorted(self._manager.all_steps()) if self._manager else []

    def latest_step(self) -> int | None:
        """The newest complete checkpoint, or None."""
        return next(self._newest_first(), None)

    def _newest_first(self) -> Iterator[int]:
        """Complete checkpoints; lists them again where the newest have been removed."""
        # A listing made while a checkpoint appears and another goes may have neither.
        listings = _LISTINGS if self._pins else 1
        while self._manager and listings:
            steps = self.steps()
            for step in reversed(steps):
                if not self._exists(step):
                    break
                yield step
            else:
                if steps:
                    return
                listings -= 1
            self._listed(self._manager.reload)

    def _exists(self, step: int) -> bool:
        """Whether a checkpoint is there, and stays if it is pinned."""
        if self._pins and step not in self._pinned:
            file = pin(self.path(step))
            if file is None:
                return False
            self._pinned[step] = file
        return True

    @activity("comparing a checkpoint with its digests")
    def damage(self, step: int) -> list[str]:
        """Lists the files of a checkpoint that have changed since it was written.

        They are read once, by the first process; other processes get an empty list. So
        does a checkpoint without digests, or a store with `verify=False`.

        Returns:
            One line for each file.
        """
        if step not in self._damage:
            verifies = self._verify and jax.process_index() == 0
            self._damage[step] = (
                find_damage(self.path(step) / DIGESTS) if verifies else []
            )
        return self._damage[step]

    def newest_whole_step(self) -> int | None:
        """The newest checkpoint without known damage, or None.

        A collective: all processes of a run must call it; the first one compares.
        """
        steps = self._newest_first() if process_number() == 0 else ()
        newest = next((step for step in steps if not self.damage(step)), None)
        return json.loads(of_first("newest whole checkpoint", json.dumps(newest)))

    def damaged(self) -> list[str]:
        """The lines of `damage` of the checkpoints that were checked so far."""
        return [line for lines in self._damage.values() for line in lines]

    def best_step(self) -> int | None:
        """The checkpoint with the best training metric, or None if none is kept."""
        steps = self.steps()
        readable = (self._readable_progress(step) for step in reversed(steps))
        newest = next(filter(None, readable), None)
        best = None if newest is None else newest.best_step
        return best if best in steps else None

    def path(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.folder / str(step)

    def save(self, step: int, items: Mapping[str, PyTree], progress: Progress) -> None:
        """Starts to write a checkpoint; training may continue while it is written.

        Args:
            step: micro-batches seen, which names it.
            items: trees of arrays by item name (`ITEMS`), see `credit_jax.checkpoint`.
            progress: position of the run.

        Raises:
            WriteError: this one, or the one before, could not be written.
        """
        manager = self._open()
        self.wait()
        if step in self.steps():
            manager.delete(step)
        if self._keep_best:
            self._preservation.best_step = progress.best_step
        if progress.batches:
            self._temporary.add(step)
        else:
            self._temporary.discard(step)
        self._preservation.temporary = self._temporary
        arrays = {
            name: ocp.args.StandardSave(as_nested_dict(tree))
            for name, tree in items.items()
        }
        progress_item = {PROGRESS: ocp.args.JsonSave(progress.to_json())}
        args = ocp.args.Composite(**arrays, **progress_item)
        self._damage.pop(step, None)
        self._written = step
        with self._writing():
            manager.save(step, args=args, force=True)

    def _record(self) -> None:
        """Writes the digests of a checkpoint that is written, but not renamed yet."""
        if jax.process_index() == 0:
            for folder in self.folder.glob(f"{self._written}.orbax-checkpoint-tmp*"):
                records = record_files(folder)
                records.pop(_WRITTEN_LATER, None)
                write_records(folder / DIGESTS, records)

    @activity("writing a checkpoint")
    def wait(self) -> None:
        """Returns when the last checkpoint is on disk.

        Raises:
            WriteError: it could not be written.
        """
        if self._manager:
            with self._writing():
                self._manager.wait_until_finished()
            if self._manager.has_postponed:
                self._manager.reload()
            self._removed.empty()

    def close(self) -> None:
        """Waits for the last save as `wait` does, and closes the folder."""
        while self._pinned:
            self._pinned.popitem()[1].close()
        manager, self._manager = self._manager, None
        if manager:
            with self._writing():
                manager.wait_until_finished()
                manager.close()
            self._removed.empty()
        self._removed.close()

    def _writing(self) -> AbstractContextManager[None]:
        path = self.folder if self._written is None else self.path(self._written)
        return write_errors(
            path, "make room for it, and go on from the checkpoint before (--resume)"
        )

    def progress(self, step: int) -> Progress:
        """Position of the run at a checkpoint."""
        manager = self._manager_with(step)
        args = ocp.args.Composite(**{PROGRESS: ocp.args.JsonRestore()})
        return Progress.from_json(manager.restore(step, args=args)[PROGRESS])

    def _readable_progress(self, step: int) -> Progress | None:
        """`progress`, or None if a file of it is damaged."""
        try:
            return self.progress(step)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def item_names(self, step: int) -> list[str]:
        """Names of the items in a checkpoint, of those in `ITEMS`."""
        self._manager_with(step)
        return [name for name in ITEMS if (self.path(step) / name).is_dir()]

    @activity("reading a checkpoint")
    def restore(self, step: int, targets: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Reads items of a checkpoint.

        Args:
            step: step of the checkpoint.
            targets: a tree like the saved one for each item, of arrays or
                `ShapeDtypeStruct`s, with the shardings to restore onto. The mesh may
                differ from that of the run that saved.

        Returns:
            The items, as trees like `targets`.

        Raises:
            FileNotFoundError: there is no such checkpoint, or it lacks an item.
            ValueError: it was written for another model or optimizer, or its files
                are damaged.
        """
        manager = self._manager_with(step)
        if damage := self.damage(step):
            raise ValueError(
                f"checkpoint {step} was damaged since it was written:\n  "
                + "\n  ".join(damage)
                + "\nUse another one, of a copy or an earlier step; --no-verify reads "
                "it as it is"
            )
        self.check_fits(step, targets)
        args = {
            name: ocp.args.StandardRestore(as_nested_dict(restore_targets(tree)))
            for name, tree in targets.items()
        }
        with _unreadable(self.path(step)):
            restored = manager.restore(step, args=ocp.args.Composite(**args))
        return {
            name: from_nested_dict(restored[name], tree)
            for name, tree in targets.items()
        }

    @activity("reading a checkpoint")
    def read_array(self, step: int, item: str, name: str) -> np.ndarray:
        """One whole array of an item, on the host.

        Args:
            step: step of the checkpoint.
            item: one of `ITEMS`.
            name: name of the array at the top of the item.
        """
        self._manager_with(step)
        args = ocp.args.PyTreeRestore(
            item={name: 0},
            restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
            partial_restore=True,
        )
        with ocp.PyTreeCheckpointer() as reader:
            return reader.restore(self.path(step) / item, args=args)[name]

    def _manager_with(self, step: int) -> Manager:
        is_listed = self._manager is not None and step in self.steps()
        if self._manager is None or not (is_listed and self._exists(step)):
            have = self.steps() or "none"
            raise FileNotFoundError(
                f"no checkpoint {step} in {self.folder}; there are: {have}"
            )
        return self._manager

    def check_fits(self, step: int, targets: Mapping[str, PyTree]) -> None:
        """Checks that items of a checkpoint fit `targets`, without reading arrays.

        Raises:
            FileNotFoundError: there is no such checkpoint, or it lacks an item.
            ValueError: names or shapes of arrays differ, or files are unreadable.
        """
        have = self.item_names(step)
        lacking = [name for name in targets if name not in have]
        if lacking:
            raise FileNotFoundError(
                f"checkpoint {self.path(step)} has no {', '.join(lacking)}; it has "
                f"{', '.join(have)}"
            )
        for name in (name for name in ITEMS if name in targets):
            tree = targets[name]
            path = self.path(step)
            with _unreadable(path):
                handler = ocp.StandardCheckpointHandler()
                stored = handler.metadata(epath.Path(path / name))
            problems = differences(stored.tree, restore_targets(tree))
            if problems:
                raise ValueError(
                    f"checkpoint {self.path(step)} does not fit this run ({name}):\n  "
                    + "\n  ".join(problems)
                    + "\nUse the model section that it was trained with (model.yml), "
                    "or another save_loc."
                )


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Turns what Orbax and TensorStore raise for damaged files into a ValueError."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, _OF_BAD_FILES):
            raise
        raise ValueError(
            f"checkpoint {path} cannot be read: {str(error).partition('. See full')[0]}"
            "; its files are damaged or incomplete, use another one: of a copy or an "
            "earlier step"
        ) from error


AVERAGE, LAST = "average", "last"
CHOICES = (AVERAGE, LAST)


def takes_average(choice: str | None, *, has_average: bool, origin: object) -> bool:
    """Returns whether to take the average of the weights: of None, if there is one."""
    if choice not in (None, *CHOICES):
        raise ValueError(
            f"weights is {choice!r}; expected 'average', 'last', or None for the "
            "average if there is one"
        )
    if choice == AVERAGE and not has_average:
        raise ValueError(
            f"weights average: {origin} has no moving average of the weights; take "
            "weights last"
        )
    return has_average and choice != LAST


def label_of(*, average: bool) -> str:
    """What messages call the weights that are taken."""
    return "moving average" if average else "last weights"
