"""Runs a config on meshes, in processes with simulated devices."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from credit_jax.certification.certify import folder_name
from credit_jax.certification.measure import PARTS, Measured
from credit_jax.certification.worker import MeasurementJob, read_measured


class Processes:
    """A `Runner` (`certify`) of a config; `close` ends its processes.

    A process does one mesh after the other: importing JAX and planning the config take
    as long as a small model.

    Args:
        config: path of the YAML file.
        folder: folder for numbers and checkpoints.
        reference: name of the mesh that the others are compared with.
        checkpoint: see `MeasurementJob`.
        cache: see `MeasurementJob`.
        num_devices: largest number of devices of a mesh.
        at_once: number of processes.
        run: folder where the first weights of the reference are written as the
            checkpoint of a run; None for nowhere.
        cwd: working directory of the processes, which relative paths of the config
            refer to; None for that of this one.
    """

    def __init__(
        self,
        config: Path,
        folder: Path,
        reference: str,
        *,
        checkpoint: str | None,
        cache: str | None,
        num_devices: int,
        at_once: int,
        run: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._reference = reference
        self._checkpoint = checkpoint
        self._cache = cache
        self._run = run
        self._cwd = cwd
        self._num_devices = num_devices
        self._idle: list[_Process] = []
        self._running = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        # Of the reference alone: those of all meshes together can fill the memory.
        self._results: dict[tuple[bool, tuple[str, ...]], Future[Measured]] = {}
        self._pool = ThreadPoolExecutor()

    def close(self) -> None:
        """Ends the processes, when they have done what they were asked for."""
        self._pool.shutdown(cancel_futures=True)
        for process in self._idle:
            process.end()

    def measured(
        self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS
    ) -> Measured:
        """Some numbers of a mesh, from a process; those of the reference from one."""
        if mesh != self._reference:
            # Its checkpoint is restored on this mesh.
            self.measured(self._reference, x64=x64, parts=parts)
            return self._measure(mesh, x64, parts)
        key = (x64, tuple(parts))
        with self._lock:
            if key not in self._results:
                self._results[key] = self._pool.submit(self._measure, mesh, *key)
            result = self._results[key]
        return result.result()

    def place(self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS) -> str:
        """The first place where these numbers differ from those of the reference."""
        job = dataclasses.replace(self._job(mesh, x64, parts), place=True)
        with self._process() as process:
            return process.answer(job)

    def _measure(self, mesh: str, x64: bool, parts: Sequence[str]) -> Measured:
        job = self._job(mesh, x64, parts)
        with self._process() as process:
            process.answer(job)
        return read_measured(Path(job.out))

    def _job(self, mesh: str, x64: bool, parts: Sequence[str]) -> MeasurementJob:
        folder = self._folder / folder_name(x64=x64, parts=parts)
        folder.mkdir(parents=True, exist_ok=True)
        is_reference = mesh == self._reference
        return MeasurementJob(
            config=str(self._config),
            mesh=mesh,
            x64=x64,
            out=str(folder / f"{mesh}.npz"),
            folder=str(folder / mesh),
            reference=None if is_reference else str(folder / self._reference),
            start=None if is_reference else str(folder / f"{self._reference}.npz"),
            checkpoint=self._checkpoint,
            cache=self._cache,
            parts=tuple(parts),
            run=str(self._run) if self._run and is_reference else None,
        )

    @contextlib.contextmanager
    def _process(self) -> Iterator[_Process]:
        """One that is idle, or a new one; at an error it is not used again."""
        with self._running:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            process = idle or _Process(self._folder, self._cwd, self._num_devices)
            try:
                yield process
            except BaseException:
                process.end()
                raise
            with self._lock:
                self._idle.append(process)


class _Process:
    """A process of `worker`, which does one job after the other.

    Args:
        folder: folder for what it prints.
        cwd: working directory; None for that of this process.
        num_devices: number of simulated devices, where they are simulated.
    """

    def __init__(self, folder: Path, cwd: Path | None, num_devices: int) -> None:
        errors, path = tempfile.mkstemp(".log", dir=folder, text=True)
        self._errors = Path(path)
        self._process = subprocess.Popen(
            (sys.executable, "-m", "credit_jax.certification.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=cwd,
            env={**os.environ, **simulated(num_devices)},
        )
        os.close(errors)

    def answer(self, job: MeasurementJob) -> str:
        """Does a job and returns what the process answers.

        Raises:
            ValueError: the process has ended; the last lines of its errors are named.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "a pipe"
        assert stdout is not None, "a pipe"
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
            stdin.flush()
        if answer := stdout.readline():
            return json.loads(answer)
        status = self._process.wait()
        lines = self._errors.read_text().strip().splitlines()[-12:]
        raise ValueError(
            f"the process of mesh {job.mesh} ended with {status}:\n  "
            + "\n  ".join(lines)
        )

    def end(self) -> None:
        """Ends the process; it does no more jobs."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def simulated(num_devices: int) -> dict[str, str]:
    """Environment of a process with simulated devices, unless JAX_PLATFORMS is set."""
    platforms = os.environ.get("JAX_PLATFORMS", "cpu")
    return {"JAX_PLATFORMS": platforms, "JAX_NUM_CPU_DEVICES": str(num_devices)}
