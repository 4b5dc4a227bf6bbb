"""Runs a config on meshes, each in a process of its own with its own devices."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from credit_jax.certification.certify import folder_name
from credit_jax.certification.measure import BOTH, Measured
from credit_jax.certification.worker import Job, read_measured


class Processes:
    """A `Runner` (`certify`) of a config.

    Args:
        config: path of the YAML file.
        folder: folder for numbers and checkpoints.
        reference: name of the mesh that the others are compared with.
        checkpoint: see `Job`.
        cache: see `Job`.
        at_once: number of processes at a time.
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
        self._running = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        # Of the reference alone: those of all meshes together can fill the memory.
        self._results: dict[tuple[bool, tuple[str, ...]], Future[Measured]] = {}
        self._pool = ThreadPoolExecutor()

    def measured(
        self, mesh: str, *, x64: bool, parts: Sequence[str] = BOTH
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

    def place(self, mesh: str, *, x64: bool, parts: Sequence[str] = BOTH) -> str:
        """The first place where these numbers differ from those of the reference."""
        job = dataclasses.replace(self._job(mesh, x64, parts), place=True)
        return self._start(job, "place").strip().splitlines()[-1]

    def _measure(self, mesh: str, x64: bool, parts: Sequence[str]) -> Measured:
        job = self._job(mesh, x64, parts)
        self._start(job, "numbers")
        return read_measured(Path(job.out))

    def _job(self, mesh: str, x64: bool, parts: Sequence[str]) -> Job:
        folder = self._folder / folder_name(x64=x64, parts=parts)
        folder.mkdir(parents=True, exist_ok=True)
        is_reference = mesh == self._reference
        return Job(
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

    def _start(self, job: Job, what: str) -> str:
        """Runs a job to its end and returns what it prints."""
        path = Path(job.out).with_suffix(f".{what}.json")
        path.write_text(json.dumps(dataclasses.asdict(job)))
        command = [sys.executable, "-m", "credit_jax.certification.worker", str(path)]
        with self._running:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=self._cwd
            )
        if ended.returncode:
            lines = (ended.stderr or ended.stdout).strip().splitlines()[-12:]
            raise ValueError(
                f"the process of mesh {job.mesh} ended with {ended.returncode}:\n  "
                + "\n  ".join(lines)
            )
        return ended.stdout
