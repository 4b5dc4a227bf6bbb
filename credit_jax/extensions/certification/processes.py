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
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from credit_jax.config import load_config
from credit_jax.extensions.certification.certify import Job
from credit_jax.extensions.certification.subject import (
    Subject,
    dims_of,
    subject_of_config,
)
from credit_jax.packages.package import open_artifact
from credit_jax.parallel.compiler import compile_quickly, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import ensure_devices


class Processes:
    """What a `Judge` runs jobs of a config with; `close` ends its processes."""

    def __init__(
        self,
        settings: tuple[Path, str | None, str | None],
        folder: Path,
        *,
        num_devices: int,
        at_once: int,
        cwd: Path | None = None,
    ) -> None:
        self._settings, self._folder = settings, folder
        self._process, self._at_once = (num_devices, cwd), at_once
        # A process does one mesh after the other: importing JAX and planning the config
        # take as long as a small model. One that ends, as XLA may do at a wrong
        # program, takes no other with it.
        self._idle = queue.SimpleQueue[tuple[ProcessPoolExecutor, Path]]()
        for _ in range(at_once):
            self._idle.put(self._new_process())

    def close(self) -> None:
        """Ends the processes, when they have done what they were asked for."""
        for _ in range(self._at_once):
            self._idle.get()[0].shutdown()

    def __call__(self, job: Job, function: Callable[..., Any], *numbers: Any) -> Any:
        """What a method of a job gives in a process that is idle, or in a new one."""
        process, output = self._idle.get()
        try:
            arguments = self._settings, job, function, numbers
            return process.submit(run_job, *arguments).result()
        except BrokenProcessPool:
            lines = output.read_text().strip().splitlines()[-12:]
            process, output = self._new_process()
            raise ValueError(
                f"the process of mesh {job.mesh} ended:\n  " + "\n  ".join(lines)
            ) from None
        finally:
            self._idle.put((process, output))
            _trim()

    def _new_process(self) -> tuple[ProcessPoolExecutor, Path]:
        """A process, which begins to import JAX, and the file of what it prints."""
        descriptor, path = tempfile.mkstemp(".log", dir=self._folder, text=True)
        os.close(descriptor)
        spawn = multiprocessing.get_context("spawn")
        arguments = Path(path), *self._process
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


def run_job(
    settings: tuple[Path, str | None, str | None],
    job: Job,
    function: Callable[..., Any],
    numbers: Sequence[Any],
) -> Any:
    """What a method of a job gives; its errors as ValueErrors, which can be pickled."""
    config, checkpoint, cache = settings
    try:
        ensure_devices(max(dims_of(n).world_size for n in (job.mesh, job.reference)))
        jax.config.update("jax_enable_x64", job.x64)
        use_cache(cache)
        subject = _subject(config, checkpoint, job.x64)
        result = function(job, subject, jax.devices(), *numbers)
    except (ValueError, OSError) as error:
        raise ValueError(str(error)) from None
    except Exception:
        raise ValueError(traceback.format_exc(limit=-3)) from None
    # What a mesh took: its programs are of no use to the next.
    jax.clear_caches()
    gc.collect()
    _trim()
    return result


def _trim() -> None:
    """Glibc keeps what was freed, seven gigabytes of the small U-Net in float64."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


# The meshes of a process have the same: planning takes as long as tracing.
@lru_cache(maxsize=1)
def _subject(path: Path, checkpoint: str | None, x64: bool) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        weights = None if checkpoint is None else open_artifact(checkpoint)
        config = load_config(path)
        return subject_of_config(config, path, x64=x64, weights=weights)
