"""Folders at an address, such as s3://bucket/run, as folders of this machine.

Commands work in a copy below the cache folder. It begins as what is at the address,
and what changes goes there every few seconds and at the end. A list of the files is
written after all that it names, so that a killed job leaves what its last list says;
an object that only one job can create keeps two jobs apart.
"""

from __future__ import annotations

import _thread
import atexit
import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from jax._src.distributed import global_state

from credit_jax.io.folder_lock import is_running
from credit_jax.io.remote import has_credentials, parts_of
from credit_jax.io.retry import brief, retried

SCHEMES = ("az", "gs", "http", "https", "s3")
LIST, LOCK = ".credit_jax.files", ".credit_jax.lock"
INTERVAL = 5.0  # s between uploads of what has changed
LEASE = 40.0  # s after which the lock of a job that does not renew it is free
# Parts of the names of files that are not finished, and of locks.
_UNFINISHED = (".partial", ".orbax-checkpoint-tmp", ".lock")
_THREADS = 8
_LOG = logging.getLogger("credit_jax")
_mirrors: dict[str, Mirror] = {}


def cache_folder() -> Path:
    """The folder of all that can be made again."""
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    return home.expanduser().resolve() / "credit_jax"


def is_address(path: str) -> bool:
    """Whether a path is an address; ValueError if it is one of an unknown kind."""
    scheme = re.match(r"([A-Za-z][\w+.-]+):/", path)
    if scheme and scheme[1] not in SCHEMES:
        raise ValueError(
            f"{path!r} is an address of an unknown kind, expected a path of this "
            f"machine or one of {', '.join(f'{x}://' for x in SCHEMES)}"
        )
    return scheme is not None


def local_path(path: str) -> str:
    """Returns the path of a file or folder here, for an address that of its copy.

    Raises:
        ValueError: the address is of an unknown kind, or cannot be reached.
    """
    if not is_address(path):
        return path
    # A `Path` has made one slash of two.
    path = re.sub(":/+", "://", path, count=1).rstrip("/")
    # A folder of ours that it lies in, such as that of a run, is copied as a whole.
    parents, parent = [path], path
    while (parent := parent.rpartition("/")[0]).count("/") > 2:
        parents.append(parent)
    # Those that are copied already are not asked for again.
    copied = (p for p in parents if p in _mirrors)
    try:
        listed = (p for p in parents if _is_listed(p))
        address = next(chain(copied, listed), path)
        if address not in _mirrors:
            _mirrors[address] = Mirror(address)
    except OSError as error:
        raise ValueError(str(error)) from error
    return f"{_mirrors[address].path}{path[len(address) :]}"


def claim(path: Path) -> None:
    """Takes the lock of the address of a path, if it is in a copy of one."""
    for mirror in _mirrors.values():
        if path.is_relative_to(mirror.path):
            mirror.claim()


def upload_all() -> None:
    """Uploads what has changed and gives the locks back, at the end of a command."""
    while _mirrors:
        _mirrors.popitem()[1].close()


atexit.register(upload_all)


def _is_listed(address: str) -> bool:
    import obstore

    try:
        store, key = parts_of(address)
        retried(lambda: obstore.head(store, f"{key}/{LIST}"), address)
    except FileNotFoundError:
        return False
    except ValueError:  # obstore is not installed
        raise
    except Exception as error:
        without = "" if has_credentials() else " without credentials"
        text = f"{address}: cannot be reached{without} ({brief(error)})"
        raise OSError(text) from error
    return True


class _Taken(Exception):
    """A conditional put found another object than it expected."""


class Mirror:
    """A folder, or a file, that stands for what is at an address."""

    def __init__(self, address: str) -> None:
        """Copies what is there, unless another process of the job has done so."""
        self.address = address
        self._store, self._key = parts_of(address)
        self._root = cache_folder() / "addresses"
        self._root /= sha256(address.encode()).hexdigest()[:16]
        self._root.mkdir(parents=True, exist_ok=True)
        self.path = self._root / address.rpartition("/")[2]
        self._state_file = self._root / "files.json"
        self._lease: str | None = None  # the tag of the lock
        self._busy, self._closing = threading.RLock(), threading.Event()
        self._error: ValueError | None = None
        self._who = {"process": os.getpid(), "host": socket.gethostname()}
        self._users = (self._root / "users").open("a")
        try:
            with suppress(BlockingIOError):
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._download()
            fcntl.flock(self._users, fcntl.LOCK_SH)
        except BaseException:
            self._users.close()
            raise
        threading.Thread(target=self._watch, daemon=True).start()

    def _call(
        self, function: Callable[..., Any], name: str, *args: Any, **keys: Any
    ) -> Any:
        """What a function of obstore returns for one file."""
        path = f"{self._key}/{name}" if name else self._key
        try:
            return retried(
                lambda: function(self._store, path, *args, **keys), self.address
            )
        except OSError:
            raise
        except Exception as error:
            if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                raise _Taken from error
            raise OSError(f"{self.address}: {brief(error)}") from error

    def _listed(self) -> dict[str, str]:
        """Relative path -> tag of the files at the address; "" is a single one."""
        import obstore

        with suppress(FileNotFoundError):
            return json.loads(bytes(self._call(obstore.get, LIST).bytes()))

        def objects(store: Any, key: str) -> list[Any]:
            return [x for part in obstore.list(store, key) for x in part]

        files = {}
        if not self.address.startswith("http"):  # which has no lists
            for each in self._call(objects, ""):
                files[each["path"].removeprefix(f"{self._key}/")] = each["e_tag"]
            files.pop(LOCK, None)
        if not files:
            with suppress(FileNotFoundError):
                files[""] = self._call(obstore.head, "")["e_tag"]
        return files

    def _download(self) -> None:
        """Makes the folder what is at the address, if another job has changed that."""
        import obstore

        files, state, here = self._listed(), self._state(), self._scan()
        if files == {name: entry[2] for name, entry in state.items()}:
            return  # What an earlier job here could not upload is newer.
        if any(here[name] != state.get(name, [])[:2] for name in here):
            aside = self.path.with_name(f"{self.path.name}_{time.time_ns()}")
            self.path.rename(aside)
            text = "%s has changed elsewhere; what was not uploaded from here is in %s"
            _LOG.warning(text, self.address, aside)
            here = {}
        for name in {*here} - {*files}:
            self._file(name).unlink()
            with suppress(OSError):  # a folder that has others
                for folder in self._file(name).relative_to(self.path).parents[:-1]:
                    (self.path / folder).rmdir()

        def fetch(name: str) -> None:
            target = self._file(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.partial")
            with partial.open("wb") as file:
                for part in self._call(obstore.get, name):
                    file.write(part)
            partial.replace(target)

        unchanged = (n for n in here if n in files and state[n] == [*here[n], files[n]])
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, {*files} - {*unchanged}))
        here = self._scan()
        self._write_state({name: [*here[name], tag] for name, tag in files.items()})

    def _file(self, name: str) -> Path:
        return self.path / name if name else self.path

    def _scan(self) -> dict[str, list[Any]]:
        """Relative path -> size and time of modification of the finished files."""
        files = {}
        # Folders may vanish meanwhile.
        inside = (
            Path(at, name) for at, _, names in os.walk(self.path) for name in names
        )
        for path in [self.path] if self.path.is_file() else inside:
            name = "" if path == self.path else str(path.relative_to(self.path))
            if not any(part in f"/{name}" for part in _UNFINISHED):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    files[name] = [status.st_size, status.st_mtime_ns]
        return files

    def _state(self) -> dict[str, list[Any]]:
        """As `_scan`, with the tags, of what was at the address at last."""
        with suppress(OSError, ValueError):
            return json.loads(self._state_file.read_text())
        return {}

    def _write_state(self, files: dict[str, list[Any]]) -> None:
        partial = self._state_file.with_suffix(".partial")
        partial.write_text(json.dumps(files))
        partial.replace(self._state_file)

    def claim(self) -> None:
        """Takes the lock of the address, unless this job has it.

        Raises:
            ValueError: another job uses the address, or nothing can be written there.
        """
        # One process of a job writes; the others have to see the same folder.
        job = sha256(str(global_state.coordinator_address).encode()).hexdigest()[:8]
        mark, since = self._root / f"job-{job}", time.monotonic()
        while global_state.process_id:
            if mark.exists():
                return
            if time.monotonic() - since > LEASE:
                raise ValueError(
                    f"{self.address}: the processes of several machines need one copy "
                    "of it; set XDG_CACHE_HOME to a folder that they share"
                )
            time.sleep(0.2)
        with self._busy:
            first = None
            while self._lease is None:
                try:
                    tag, holder = self._lock()
                    here = tag and holder["host"] == socket.gethostname()
                    ended = here and not is_running(holder["process"])
                    if not tag or ended or time.monotonic() > since + LEASE:
                        self._renew(tag)
                        break
                    if tag != (first := first or tag):
                        raise ValueError(
                            f"{self.address}: a job uses it ({holder['process']} on "
                            f"{holder['host']}); wait for its end, or give another one"
                        )
                    time.sleep(1)
                except _Taken:
                    pass
                except OSError as error:
                    text = f"{self.address}: cannot be written to: {brief(error)}"
                    raise ValueError(text) from error
            mark.touch()

    def _lock(self) -> tuple[str, dict[str, Any]]:
        """The tag of the lock and who has it; "" if nobody has."""
        import obstore

        try:
            lock = self._call(obstore.get, LOCK)
            return lock.meta["e_tag"], json.loads(bytes(lock.bytes()))
        except FileNotFoundError:
            return "", {}

    def _renew(self, tag: str) -> None:
        import obstore

        # The time gives it another tag.
        text = json.dumps({**self._who, "time": time.time()}).encode()
        mode = {"e_tag": tag} if tag else "create"
        self._lease = self._call(obstore.put, LOCK, text, mode=mode)["e_tag"]

    def upload(self) -> None:
        """Uploads what has changed, then the list, and removes what is not in it."""
        import obstore

        def put(name: str) -> list[Any] | None:
            try:
                tag = self._call(obstore.put, name, self._file(name))["e_tag"]
            except FileNotFoundError:  # here, meanwhile
                return None
            return [*here[name], tag]

        with self._busy:
            if self._error is not None:
                raise self._error
            try:
                if self._lease is not None:
                    self._renew(self._lease)
            except _Taken:
                self._error = ValueError(
                    f"{self.address}: another job has taken it; its files are left, "
                    f"those of this one are in {self.path}"
                )
                raise self._error from None
            state, here = self._state(), self._scan()
            names, is_new = {*state}, here != {n: e[:2] for n, e in state.items()}
            while is_new:
                self.claim()
                changed = [n for n in here if here[n] != state.get(n, [])[:2]]
                with ThreadPoolExecutor(_THREADS) as pool:
                    uploaded = dict(zip(changed, pool.map(put, changed), strict=True))
                entries = {n: uploaded.get(n, state.get(n)) for n in here}
                state = {n: entry for n, entry in entries.items() if entry}
                names |= {*state}
                here = self._scan()
                # What was removed meanwhile is in no list.
                is_new = not {*state} <= {*here}
                if not is_new:
                    tags = {name: entry[2] for name, entry in state.items()}
                    self._call(obstore.put, LIST, json.dumps(tags).encode())
                    self._write_state(state)
                    for name in names - {*state}:
                        self._call(obstore.delete, name)

    def _watch(self) -> None:
        """Uploads, again and again, until the end or until another job has the lock."""
        while not self._closing.wait(INTERVAL):
            try:
                if not global_state.process_id:
                    self.upload()
            except ValueError as error:
                _LOG.error("%s", error)
                _thread.interrupt_main()
                return
            except OSError as error:
                _LOG.warning("%s; what is new is uploaded later", error)

    def close(self) -> None:
        """Uploads the last changes and gives the lock back."""
        import obstore

        self._closing.set()
        with self._busy, self._users:
            if not global_state.process_id:
                self.upload()
            if self._lease is not None:
                self._lease = None
                self._call(obstore.delete, LOCK)
