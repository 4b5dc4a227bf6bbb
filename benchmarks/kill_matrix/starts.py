"""Processes of `credit-jax`, forked from one with the modules of training imported.

Imports take most of the time of starting a small run. Each process does everything else
itself: it connects to the others, initializes JAX, reads its data, restores, and traces
its programs; compiled programs are cached.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from credit_jax.parallel.processes.watch import RESUME

_ROOT = Path(__file__).parents[2]
_IMPORTS = ("benchmarks.kill_matrix.child", "h5netcdf", "zarr", "tensorboardX")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
# Commands that several processes run together.
_JOINED = ("train", "forecast")


@dataclass(frozen=True)
class Trigger:
    """The moment at which a process sends a message; see `moments.tell_at`.

    Attributes:
        moment: kind of event.
        number: number of the event, from 1.
        stop: whether the process stops there.
        process: number of the process.
        below: beginnings of the paths that count, of the moment `WRITING`.
    """

    moment: str
    number: int
    stop: bool = False
    process: int = 0
    below: tuple[str, ...] = ()


@dataclass
class Started:
    """A start of a run.

    Attributes:
        processes: processes by their number.
        told: receives the message of the trigger.
        logs: files that the processes append to, and their sizes before this start.
    """

    processes: list[BaseProcess]
    told: Connection
    logs: Mapping[Path, int]

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return all(process.exitcode is not None for process in self.processes)

    def signal(self, number: int, sent: signal.Signals) -> None:
        """Sends a signal to a process that has not ended."""
        process = self.processes[number]
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, sent)

    def wait_until_stopped(self, number: int, seconds: float) -> None:
        """Waits until a process has stopped or ended; an earlier SIGCONT is lost."""
        status = Path(f"/proc/{self.processes[number].pid}/stat")
        deadline = time.monotonic() + seconds
        while self.code(number, 0) is None and time.monotonic() < deadline:
            # "PID (NAME) STATE ...", and a name may have brackets, too.
            with suppress(OSError):  # it may end meanwhile
                if status.read_text().rpartition(")")[2].split()[0] == "T":
                    return
            time.sleep(0.001)

    def code(self, number: int, seconds: float) -> int | None:
        """The exit code of a process, negative for a signal; None if it is running."""
        self.processes[number].join(seconds)
        return self.processes[number].exitcode

    def printed(self, number: int) -> str:
        """What a process has printed."""
        path, before = list(self.logs.items())[number]
        content = path.read_bytes() if path.exists() else b""
        return content[before:].decode(errors="replace")

    def problems_of_others(
        self, killed: Sequence[int], good: Sequence[int]
    ) -> list[str]:
        """Checks how the processes ended that were not killed, one line for each fault.

        A process that ended because of a kill has to print which one is gone.

        Args:
            killed: numbers of the killed processes.
            good: exit codes that are right.
        """
        lines = []
        for number in sorted({*range(len(self.processes))} - {*killed}):
            code = self.code(number, 0)
            if code not in good:
                lines.append(f"process {number} ended with {code}")
            named = re.findall(r"error: process (\d+) is gone", self.printed(number))
            if code == RESUME and [int(n) for n in named] not in [[k] for k in killed]:
                lines.append(f"process {number} says {named} of {[*killed]} is gone")
        return lines

    def end(self) -> None:
        """Kills the processes that have not ended."""
        for process in self.processes:
            process.kill()
            process.join()


def start(
    options: Sequence[str],
    count: int,
    log: Path,
    *,
    command: str = "train",
    trigger: Trigger | None = None,
    fault: str | None = None,
) -> Started:
    """Starts the processes of a run.

    Args:
        options: options of the command.
        count: number of processes, 1 of commands that run in one.
        log: the output of process N is appended to this path with the suffix `.N`.
        command: subcommand of `credit-jax`.
        trigger: trigger of one of the processes.
        fault: function of `benchmarks.kill_matrix.injected` that the first process
            calls before it trains.
    """
    context = _context()
    told, telling = context.Pipe(duplex=False)
    coordinator = f"127.0.0.1:{_free_port()}"
    logs = [Path(f"{log}.{number}") for number in range(count)]
    sizes = {path: path.stat().st_size if path.exists() else 0 for path in logs}
    processes = []
    for number in range(count):
        arguments = [command, *options]
        if command in _JOINED:
            # Also for a single process, so that its sums are those of several.
            arguments += ["--coordinator", coordinator, "--processes", str(count)]
            arguments += ["--process", str(number)]
        tells = trigger is not None and number == trigger.process
        process = context.Process(
            target=_run,
            args=(
                arguments,
                str(logs[number]),
                telling if tells else None,
                trigger if tells else None,
                fault if number == 0 else None,
            ),
            daemon=True,
        )
        process.start()
        processes.append(process)
    telling.close()
    return Started(processes, told, sizes)


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
    # Caches programs that compile fast, too, as there are hundreds of them.
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
    """The main function of a process of a run."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    child = importlib.import_module("benchmarks.kill_matrix.child")
    if trigger is not None and telling is not None:
        child.tell_at(trigger, telling)
    if fault is not None:
        child.inject(fault)
    code = 1
    try:
        code = child.run(options)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # Runs exit handlers like the interpreter; `multiprocessing` does not.
    atexit._run_exitfuncs()
    sys.exit(code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
