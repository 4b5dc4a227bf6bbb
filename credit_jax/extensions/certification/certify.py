"""Certificates: what was compared on which meshes, and whether it is the same."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from credit_jax.extensions.certification.measure import PARTS, Measured, measure
from credit_jax.extensions.certification.subject import (
    NUM_SAMPLES,
    ONE_DEVICE,
    Subject,
    chosen_meshes,
    subject_of_model,
)
from credit_jax.extensions.certification.verdict import (
    FLOAT32,
    FLOAT64,
    Bounds,
    Check,
    block_outputs,
    compare,
    first_difference,
    not_finite,
    vanishing,
)
from credit_jax.models.model_def import ModelDef

# Bounds of float32 by which rounding is so large that float32 says nothing.
BLURRED = 10.0


@dataclass(frozen=True)
class MeshVerdict:
    """The comparison of one mesh with one device."""

    mesh: str
    # In float32, or as the certificate says; empty if the mesh does not run, or where
    # float32 says nothing (`Judge`).
    checks: tuple[Check, ...] = ()
    # Where a bound in float32 is broken, or float32 says nothing.
    in_float64: tuple[Check, ...] = ()
    place: str = ""  # first that differs; "" if nothing does

    @property
    def passed(self) -> bool:
        """Whether every bound holds, of float64 where that of float32 is broken."""
        decisive = self.in_float64 or self.checks
        broken = _broken(decisive) or _broken(self.checks, final=True)
        return bool(decisive) and not broken

    def lines(self) -> Iterator[str]:
        """The verdict as text: the check nearest to its bound, and what differs."""
        name = f"{self.mesh:24}"
        state = "the same" if self.passed else "DIFFERS"
        checks = self.checks or self.in_float64
        if checks:
            worst = max(checks, key=lambda c: (not c.passed, c.error / (c.bound or 1)))
            origin = f" ({worst.where})" if worst.where else ""
            decided = ""
            if self.in_float64 and self.passed:
                decided = ", the same in float64" if self.checks else " of float64"
            yield (
                f"{name} {state}: {worst.quantity}{origin} {worst.error:.1e}, bound "
                f"{worst.bound:.0e}{decided}"
            )
        if self.place:
            yield f"{name} first difference: {self.place}"


@dataclass(frozen=True)
class Certificate:
    """The comparisons of all meshes.

    Attributes:
        subject: what it is about, such as the type of the model.
        reference: name of the mesh that the others are compared with.
        bounds: bounds of `MeshVerdict.checks`.
        verdicts: verdict of each mesh.
        credit: lines of the comparison with serial CREDIT; empty without.
        credit_passed: whether that comparison passed.
        vanishing: parameters whose gradient is of rounding errors alone.
        not_certified: what the comparisons say nothing about, one line each.
        provenance: versions, digests, command and the like, by name.

    >>> certificate = credit_jax.certify_model(model.model_def, meshes=["1"])
    >>> list(certificate.lines())
    []
    """

    subject: str
    reference: str
    bounds: Bounds
    verdicts: tuple[MeshVerdict, ...]
    credit: tuple[str, ...] = ()
    credit_passed: bool = True
    vanishing: tuple[str, ...] = ()
    not_certified: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every mesh gives the same as one device, and as CREDIT if asked."""
        return self.credit_passed and all(v.passed for v in self.verdicts)

    def lines(self) -> Iterator[str]:
        """The certificate as text: a line for each mesh, and the places that differ."""
        for verdict in self.verdicts:
            yield from verdict.lines()
        yield from self.credit

    def to_json(self) -> dict[str, Any]:
        """The certificate as JSON values."""
        content = {**dataclasses.asdict(self), "passed": self.passed}
        for verdict, values in zip(self.verdicts, content["verdicts"], strict=True):
            values["passed"] = verdict.passed
        return content


def _broken(checks: Sequence[Check], *, final: bool = False) -> tuple[str, ...]:
    """The parts in which a bound is broken; with `final`, one not for float64."""
    wrong = {c.part for c in checks if not c.passed and (c.is_final or not final)}
    return tuple(part for part in PARTS if part in wrong)


def certify_model(
    model_def: ModelDef,
    *,
    meshes: Sequence[str] | None = None,
    devices: Sequence[Any] | None = None,
    seed: int = 0,
) -> Certificate:
    """Compares a model on many meshes with itself on one device, in this process.

    The forward pass, the losses, all gradients and the weights of three updates, and a
    checkpoint of one device that every mesh goes on from.

    Args:
        model_def: any model, also one that no config names.
        meshes: names such as "fsdp2xdomain3"; None for all that the model and the
            devices fit.
        devices: None for all of this process. On a CPU, call
            `credit_jax.ensure_devices(8)` first.
        seed: seed of weights and inputs.

    Returns:
        The certificate; `passed` says whether all meshes give the same.

    Raises:
        ValueError: a mesh that was asked for does not fit the model or the devices.

    >>> certificate = credit_jax.certify_model(model.model_def, meshes=["1"])
    >>> certificate.passed
    True
    """
    present = list(jax.devices() if devices is None else devices)
    x64 = bool(jax.config.values["jax_enable_x64"])
    names = chosen_meshes(model_def, meshes, len(present), num_samples=NUM_SAMPLES)
    names = [name for name in names if name != ONE_DEVICE]
    with tempfile.TemporaryDirectory() as folder:

        def run(job: Job, function: Callable[..., Any], *numbers: Any) -> Any:
            with jax.enable_x64(job.x64):
                subject = subject_of_model(model_def, x64=job.x64, seed=seed)
                return function(job, subject, present, *numbers)

        judge = Judge(run, Job(ONE_DEVICE, ONE_DEVICE, Path(folder), x64))
        verdicts = [judge(name) for name in names]
        expected = judge.expected()
    return Certificate(
        str(model_def.config.type),
        ONE_DEVICE,
        FLOAT64 if x64 else FLOAT32,
        tuple(verdicts),
        vanishing=tuple(vanishing(expected)),
    )


@dataclass(frozen=True)
class Job:
    """What is asked of one mesh, beside that which others are compared with."""

    mesh: str
    reference: str
    folder: Path  # of the checkpoints of all meshes
    x64: bool = False
    parts: tuple[str, ...] = PARTS

    @property
    def runs(self) -> Path:
        """Folder of the checkpoints in the dtype of the job, and of its parts."""
        return self.folder / "-".join(
            ("float64" if self.x64 else "float32", *self.parts)
        )

    def measure(
        self, subject: Subject, devices: Sequence[Any], expected: Measured | None
    ) -> Measured:
        """The numbers of the mesh, with those of the reference unless it is that."""
        return measure(
            subject,
            self.mesh,
            devices,
            folder=self.runs / self.mesh,
            reference=None if expected is None else self.runs / self.reference,
            expected=expected,
            parts=self.parts,
        )

    def place(
        self,
        subject: Subject,
        devices: Sequence[Any],
        expected: Measured,
        actual: Measured,
    ) -> str:
        """The first place where the mesh differs from the reference."""
        outputs = block_outputs(subject, self.reference, devices, expected.start)
        bounds = FLOAT64 if self.x64 else FLOAT32
        return first_difference(subject, devices, actual, expected, bounds, outputs)


class Judge:
    """Compares meshes with the reference, in float64 where float32 does not decide."""

    def __init__(self, run: Callable[..., Any], job: Job) -> None:
        self._run, self._job = run, job
        # Whether an error in float32 was beyond `BLURRED` bounds and float64 found
        # none: float32 says nothing about the model, and later meshes are compared in
        # float64 alone.
        self._is_blurred = False
        self._lock = threading.Lock()
        # Of the reference alone: those of all meshes together can fill the memory.
        self._expected: dict[Job, Future[Measured]] = {}

    def expected(self, job: Job | None = None) -> Measured:
        """Some numbers of the reference, in the dtype of a job, computed once."""
        job = replace(job or self._job, mesh=self._job.mesh)
        with self._lock:
            is_first = job not in self._expected
            result = self._expected.setdefault(job, Future())
        if is_first:
            try:
                result.set_result(self._run(job, Job.measure, None))
            except BaseException as error:
                result.set_exception(error)
        return result.result()

    def __call__(self, mesh: str) -> MeshVerdict:
        """Returns the verdict of a mesh; threads may ask for several at a time."""
        at_once = self._job.x64 or self._is_blurred
        job = replace(self._job, mesh=mesh, x64=at_once)
        # Its errors are not those of the mesh.
        if wrong := not_finite(self.expected(job)):
            raise ValueError(
                f"mesh {job.reference} gives numbers that are not finite ({wrong}), "
                "with which nothing can be compared; look for their cause there first, "
                "such as a checkpoint of a run that had diverged"
            )
        narrow, wide, block, parts, is_blurred = (), (), "", PARTS, False
        try:
            if not at_once:
                narrow, block = self._checked(job)
                if _broken(narrow, final=True):
                    return MeshVerdict(mesh, narrow, place=block)
                # So large an error, if it is of rounding, that a dtype says nothing.
                is_blurred = any(
                    c.error > BLURRED * c.bound for c in narrow if not c.is_final
                )
                parts = PARTS if is_blurred else _broken(narrow)
            if parts:
                wide, block = self._checked(replace(job, x64=True, parts=parts))
                if is_blurred and not _broken(wide):
                    self._is_blurred = True
        except Exception as error:  # whatever a wrong sharding raises is a finding
            return MeshVerdict(mesh, place=f"it does not run: {error}")
        if self._job.x64:
            narrow, wide = wide, ()
        return MeshVerdict(mesh, narrow, wide, block)

    def _checked(self, job: Job) -> tuple[tuple[Check, ...], str]:
        """The checks of a mesh, and the place where it differs, if that is decided."""
        expected = self.expected(job)
        actual = self._run(job, Job.measure, expected)
        checks = tuple(compare(actual, expected, FLOAT64 if job.x64 else FLOAT32))
        differs = _broken(checks, final=not job.x64)
        return checks, self._run(job, Job.place, expected, actual) if differs else ""
