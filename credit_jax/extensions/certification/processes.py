"""Runs a config on meshes, in processes with simulated devices."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from credit_jax.config import load_config
from credit_jax.extensions.certification.certify import folder_name
from credit_jax.extensions.certification.measure import PARTS, Measured, measure
from credit_jax.extensions.certification.meshes import dims_of
from credit_jax.extensions.certification.place import block_outputs, first_difference
from credit_jax.extensions.certification.subject import Subject, subject_of_config
from credit_jax.extensions.certification.verdict import bounds_of
from credit_jax.packages.package import open_artifact
from credit_jax.parallel.compiler import compile_quickly, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import ensure_devices


@dataclass(frozen=True)
class Job:
    """What a process does for one mesh, beside that which others are compared with.

    `folder` has the checkpoints of all meshes; `checkpoint` is the folder of a run
    whose weights are taken, None for random ones.
    """

    config: Path
    mesh: str
    reference: str
    folder: Path
    x64: bool = False
    parts: Sequence[str] = PARTS
    checkpoint: str | None = None
    cache: str | None = None


class Processes:
    """A `Runner` (`certify`) of a config; `close` ends its processes.

    A process does one mesh after the other: importing JAX and planning the config take
    as long as a small model. One that ends, as XLA may do at a wrong program, takes no
    other with it.

    Args:
        job: the job of the reference; each part has a folder in its folder.
        num_devices: largest number of devices of a mesh.
        at_once: number of processes.
        cwd: working directory of the processes, which relative paths of the config
            refer to; None for that of this one.
    """

    def __init__(
        self, job: Job, *, num_devices: int, at_once: int, cwd: Path | None = None
    ) -> None:
        self._job, self._settings = job, (num_devices, cwd)
        self._at_once = at_once
        self._idle = queue.SimpleQueue[tuple[ProcessPoolExecutor, Path]]()
        for _ in range(at_once):
            self._idle.put(self._new_process())

    def close(self) -> None:
        """Ends the processes, when they have done what they were asked for."""
        for _ in range(self._at_once):
            self._idle.get()[0].shutdown()

    def measure(
        self, mesh: str, expected: Measured | None, *, x64: bool, parts: Sequence[str]
    ) -> Measured:
        """Some numbers of a mesh, from a process."""
        return self._do(self._job_of(mesh, x64, parts), measure_job, expected)

    def place(
        self, actual: Measured, expected: Measured, *, x64: bool, parts: Sequence[str]
    ) -> str:
        """The first place where these numbers differ from those of the reference."""
        job = self._job_of(actual.mesh, x64, parts)
        return self._do(job, block_of_job, actual, expected)

    def _job_of(self, mesh: str, x64: bool, parts: Sequence[str]) -> Job:
        folder = self._job.folder / folder_name(x64=x64, parts=parts)
        return replace(self._job, mesh=mesh, folder=folder, x64=x64, parts=tuple(parts))

    def _do(self, job: Job, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives in a process that is idle, or in a new one."""
        process, output = self._idle.get()
        try:
            return process.submit(attempt, function, job, *arguments).result()
        except BrokenProcessPool:
            lines = output.read_text().strip().splitlines()[-12:]
            process, output = self._new_process()
            raise ValueError(
                f"the process of mesh {job.mesh} ended:\n  " + "\n  ".join(lines)
            ) from None
        finally:
            self._idle.put((process, output))

    def _new_process(self) -> tuple[ProcessPoolExecutor, Path]:
        """A process, which begins to import JAX, and the file of what it prints."""
        folder = self._job.folder
        descriptor, path = tempfile.mkstemp(".log", dir=folder, text=True)
        os.close(descriptor)
        spawn = multiprocessing.get_context("spawn")
        arguments = Path(path), *self._settings
        process = ProcessPoolExecutor(1, spawn, begin_process, arguments)
        process.submit(os.getpid)
        return process, Path(path)


def begin_process(log: Path, num_devices: int, cwd: Path | None) -> None:
    """Settings of a process before it uses JAX."""

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "a spawned process has one"
        parent.join()
        os._exit(1)

    # What SIGTERM ends does not stop its processes, and a program compiles for minutes.
    threading.Thread(target=end_with_parent, daemon=True).start()
    with log.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    if cwd is not None:
        os.chdir(cwd)
    compile_sooner()
    compile_quickly()
    if is_simulated():
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", num_devices)


def is_simulated() -> bool:
    """Whether devices are simulated: unless JAX_PLATFORMS names others."""
    return os.environ.get("JAX_PLATFORMS", "cpu") == "cpu"


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; its errors as ValueErrors, which other processes read."""
    try:
        return function(*arguments)
    except (ValueError, OSError) as error:
        raise ValueError(str(error)) from None
    except Exception:
        raise ValueError(traceback.format_exc(limit=-3)) from None


def measure_job(job: Job, expected: Measured | None) -> Measured:
    """The numbers of a mesh, with those of the reference unless it is that."""
    subject = _begun(job)
    numbers = measure(
        subject,
        job.mesh,
        jax.devices(),
        folder=job.folder / job.mesh,
        reference=None if expected is None else job.folder / job.reference,
        expected=expected,
        parts=job.parts,
    )
    # What a mesh took: its programs are of no use to the next.
    jax.clear_caches()
    gc.collect()
    # glibc keeps what was freed, seven gigabytes of the small U-Net in float64.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return numbers


def block_of_job(job: Job, actual: Measured, expected: Measured) -> str:
    """The first place where a mesh differs from the reference."""
    subject, devices, bounds = _begun(job), jax.devices(), bounds_of(x64=job.x64)
    outputs = block_outputs(subject, job.reference, devices, expected.start)
    return first_difference(subject, devices, actual, expected, bounds, outputs)


def _begun(job: Job) -> Subject:
    """The subject of a job, with the devices and the dtype of the job."""
    ensure_devices(max(dims_of(n).world_size for n in (job.mesh, job.reference)))
    jax.config.update("jax_enable_x64", job.x64)
    use_cache(job.cache)
    return _subject(job.config, job.checkpoint, job.x64)


# The meshes of a process have the same: planning takes as long as tracing.
@lru_cache(maxsize=1)
def _subject(path: Path, checkpoint: str | None, x64: bool) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        weights = None if checkpoint is None else open_artifact(checkpoint)
        config = load_config(path)
        return subject_of_config(config, path, x64=x64, weights=weights)
