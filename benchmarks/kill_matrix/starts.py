"""Processes of `credit-jax train`, forked from one that has imported it already.

Imports are most of what a start of a small run costs. Everything else is done by each
process itself: it takes its number, meets the others, initializes JAX, reads its data,
restores, and traces its programs; what XLA compiled is kept in a cache.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_IMPORTS = ("benchmarks.kill_matrix.child", "h5netcdf", "zarr", "tensorboardX")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Trigger:
    """When a process tells that it has come somewhere; see `moments.tell_at`.

    Attributes:
        moment: what it does then.
        number: of the events of that kind.
        stop: whether it stops there.
    """

    moment: str
    number: int
    stop: bool = False


@dataclass
class Started:
    """A start of a run.

    Attributes:
        processes: by their number.
        told: has a message when the trigger's moment has come.
    """

    processes: list[BaseProcess]
    told: Connection

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return all(process.exitcode is not None for process in self.processes)

    def signal(self, number: int, sent: signal.Signals) -> None:
        """Sends a signal to a process that has not ended."""
        process = self.processes[number]
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, sent)

    def wait_until_stopped(self, number: int, seconds: float) -> None:
        """Waits until a process has stopped or ended; a SIGCONT before that is lost."""
        status = Path(f"/proc/{self.processes[number].pid}/stat")
        deadline = time.monotonic() + seconds
        while self.code(number, 0) is None and time.monotonic() < deadline:
            # "PID (NAME) STATE ...", and a name may have brackets, too.
            if status.read_text().rpartition(")")[2].split()[0] == "T":
                return
            time.sleep(0.001)

    def code(self, number: int, seconds: float) -> int | None:
        """The exit code of a process, negative for a signal; None if it goes on."""
        self.processes[number].join(seconds)
        return self.processes[number].exitcode

    def end(self) -> None:
        """Kills what has not ended."""
        for process in self.processes:
            process.kill()
            process.join()


def start(
    options: Sequence[str],
    count: int,
    log: Path,
    *,
    trigger: Trigger | None = None,
    fault: str | None = None,
) -> Started:
    """Starts the processes of a run.

    Args:
        options: of `credit-jax train`.
        count: how many processes.
        log: what process N prints is appended to the file of this name and `.N`.
        trigger: of the first process.
        fault: function of `benchmarks.kill_matrix.injected` that the first process
            calls before it trains.
    """
    context = _context()
    told, telling = context.Pipe(duplex=False)
    coordinator = f"127.0.0.1:{_free_port()}"
    processes = []
    for number in range(count):
        # Also a single one, so that its sums are those of several processes.
        own = [*options, "--coordinator", coordinator, "--processes", str(count)]
        own += ["--process", str(number)]
        first = number == 0
        process = context.Process(
            target=_run,
            args=(
                own,
                f"{log}.{number}",
                telling if first else None,
                trigger if first else None,
                fault if first else None,
            ),
            daemon=True,
        )
        process.start()
        processes.append(process)
    telling.close()
    return Started(processes, told)


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTS])
    with _environment():
        multiprocessing.forkserver.ensure_running()
    return context


@contextmanager
def _environment() -> Iterator[None]:
    """The environment of the process that all others are forked from."""
    before = dict(os.environ)
    os.environ.pop("JAX_NUM_CPU_DEVICES", None)
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Also programs that compile in no time: there are hundreds of them.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(
    options: Sequence[str],
    log: str,
    telling: Connection | None,
    trigger: Trigger | None,
    fault: str | None,
) -> None:
    """A process of a run, from its first to its last instruction."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    child = importlib.import_module("benchmarks.kill_matrix.child")
    if trigger is not None and telling is not None:
        child.tell_at(trigger.moment, trigger.number, telling, stop=trigger.stop)
    if fault is not None:
        child.inject(fault)
    code = 1
    try:
        code = child.train(options)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # As at the end of an interpreter; `multiprocessing` leaves it out.
    atexit._run_exitfuncs()
    sys.exit(code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
