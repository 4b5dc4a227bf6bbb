"""A process of a certificate: `python -m credit_jax.certification.worker`.

Each line of standard input is a job, the fields of `MeasurementJob` as JSON, and each
job that is done a line of standard output: with `place` the first place that differs,
as JSON. The numbers of the others go to their `out`, an .npz file. At an error the
process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.certification.measure import PARTS, RUN, Measured, measure
from credit_jax.certification.meshes import dims_of
from credit_jax.certification.place import block_outputs, first_difference
from credit_jax.certification.runs import measure_run
from credit_jax.certification.subject import Subject, subject_of_config
from credit_jax.certification.verdict import bounds_of
from credit_jax.config import load_config
from credit_jax.parallel.compiler import compile_quickly, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.training.run_weights import open_weights


@dataclass(frozen=True)
class MeasurementJob:
    """What a process of a certificate does for one mesh.

    Attributes:
        config: path of the YAML file.
        mesh: name of the mesh.
        x64: compute in float64.
        out: path of the numbers.
        folder: folder of the checkpoint that is written.
        reference: folder of the reference's checkpoint; None for the reference itself.
        checkpoint: folder of a run whose weights are taken; None for random ones.
        cache: folder of compiled programs, see `use_cache`.
        start: path of the numbers of the reference; None for the reference itself.
        parts: what is measured, see `measure`.
        run: folder of the first weights as the checkpoint of a run; None for none.
        place: whether the numbers of the mesh are read from `out`, and the first place
            that differs is looked for.
    """

    config: str
    mesh: str
    x64: bool
    out: str
    folder: str
    reference: str | None = None
    checkpoint: str | None = None
    cache: str | None = None
    start: str | None = None
    parts: Sequence[str] = PARTS
    run: str | None = None
    place: bool = False


def run(job: MeasurementJob) -> str:
    """Does what a job says, and returns the place if it asks for one."""
    expected = None if job.start is None else read_measured(Path(job.start))
    meshes = [job.mesh] if expected is None else [job.mesh, expected.mesh]
    ensure_devices(max(dims_of(name).world_size for name in meshes))
    jax.config.update("jax_enable_x64", job.x64)
    use_cache(job.cache)
    subject = _subject(job.config, job.checkpoint, job.x64)
    devices = jax.devices()
    if expected is None or not job.place:
        numbers = measure(
            subject,
            job.mesh,
            devices,
            folder=Path(job.folder),
            reference=None if job.reference is None else Path(job.reference),
            expected=expected,
            parts=job.parts,
            run=None if job.run is None else Path(job.run),
        )
        if RUN in job.parts:
            numbers = dataclasses.replace(numbers, **_of_run(job, devices))
        write_measured(numbers, Path(job.out))
        return ""
    actual = read_measured(Path(job.out))
    bounds = bounds_of(x64=job.x64)
    outputs = block_outputs(subject, expected.mesh, devices, expected.start)
    return first_difference(subject, devices, actual, expected, bounds, outputs)


def _of_run(job: MeasurementJob, devices: Sequence[Any]) -> dict[str, Any]:
    """The numbers of runs of the config, in float32 or wider and in its own dtype."""
    path, folder = Path(job.config), Path(job.folder)
    numbers: dict[str, Any] = {}
    trainer = load_config(path).trainer
    narrow = (trainer.fp8 or trainer.mp_policy is not None) and not job.x64
    for in_dtype in (False, True)[: 1 + narrow]:
        name = "run in its dtype" if in_dtype else "run"
        reference = None if job.reference is None else Path(job.reference) / name
        part = measure_run(
            path,
            job.mesh,
            devices,
            folder=folder / name,
            reference=reference,
            x64=job.x64,
            in_dtype=in_dtype,
        )
        numbers |= {"logged_in_dtype": part["logged"]} if in_dtype else part
    return numbers


# The meshes of a process have the same: planning takes as long as tracing.
@lru_cache(maxsize=1)
def _subject(path: str, checkpoint: str | None, x64: bool) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = load_config(path)
        weights = None if checkpoint is None else open_weights(checkpoint)
        return subject_of_config(config, x64=x64, weights=weights)


def write_measured(measured: Measured, path: Path) -> None:
    """Writes numbers to an .npz file."""
    arrays: dict[str, Any] = {}
    for f in dataclasses.fields(measured):
        value = getattr(measured, f.name)
        if isinstance(value, Mapping):
            arrays |= {f"{f.name}|{name}": array for name, array in value.items()}
        elif value is not None:
            arrays[f.name] = value
    np.savez(path, **arrays)


def read_measured(path: Path) -> Measured:
    """Reads the numbers of `write_measured`."""
    values: dict[str, Any] = {}
    with np.load(path) as file:
        for key in file.files:
            name, separator, inner = key.partition("|")
            if separator:
                values.setdefault(name, {})[inner] = file[key]
            else:
                values[name] = file[key]
    values["mesh"] = str(values["mesh"])
    for f in dataclasses.fields(Measured):
        if f.type == "Arrays":
            values.setdefault(f.name, {})
    if "restored_loss" in values:
        values["restored_loss"] = float(values["restored_loss"])
    return Measured(**values)


def main() -> int:
    """Runs the jobs of standard input; an error of the config is its message alone."""
    compile_sooner()
    compile_quickly()
    # What else is printed here must not be read as an answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            try:
                place = run(MeasurementJob(**json.loads(line)))
            except (ValueError, OSError) as error:
                print(error, file=sys.stderr)
                return 2
            _give_back_memory()
            print(json.dumps(place), file=answers, flush=True)
    return 0


def _give_back_memory() -> None:
    """Gives back what a mesh took; its programs are of no use to the next."""
    jax.clear_caches()
    gc.collect()
    # glibc keeps what was freed, seven gigabytes of the small U-Net in float64.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


if __name__ == "__main__":
    sys.exit(main())
