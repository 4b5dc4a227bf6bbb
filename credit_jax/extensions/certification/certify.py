"""Certificates: what was compared on which meshes, and whether it is the same."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from credit_jax.extensions.certification.measure import PARTS, Measured, measure
from credit_jax.extensions.certification.meshes import ONE_DEVICE, chosen_meshes
from credit_jax.extensions.certification.place import block_outputs, first_difference
from credit_jax.extensions.certification.subject import NUM_SAMPLES, subject_of_model
from credit_jax.extensions.certification.verdict import (
    Bounds,
    Check,
    bounds_of,
    compare,
    not_finite,
    vanishing,
)
from credit_jax.models.model_def import ModelDef

# Bounds of float32 by which rounding is so large that float32 says nothing.
BLURRED = 10.0


@dataclass(frozen=True)
class MeshVerdict:
    """The comparison of one mesh with one device.

    Attributes:
        mesh: name of the mesh.
        checks: the checks in float32, or as the certificate says; empty if it does not
            run, or where float32 says nothing (`Judge`).
        in_float64: the same in float64, where a bound in float32 is broken or float32
            says nothing; else empty.
        place: the first place that differs; "" if nothing does.
    """

    mesh: str
    checks: tuple[Check, ...] = ()
    in_float64: tuple[Check, ...] = ()
    place: str = ""

    @property
    def passed(self) -> bool:
        """Whether every bound holds, of float64 where that of float32 is broken."""
        decisive = self.in_float64 or self.checks
        decided = all(check.passed for check in decisive)
        return bool(decisive) and decided and _final_pass(self.checks)

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
        return {
            **dataclasses.asdict(self),
            "passed": self.passed,
            "verdicts": [
                {**dataclasses.asdict(verdict), "passed": verdict.passed}
                for verdict in self.verdicts
            ],
        }


def _broken(checks: Sequence[Check]) -> tuple[str, ...]:
    """The parts of what is measured in which a bound is broken."""
    wrong = {check.part for check in checks if not check.passed}
    return tuple(part for part in PARTS if part in wrong)


def _final_pass(checks: Sequence[Check]) -> bool:
    """Whether all passes that float64 does not decide."""
    return all(check.passed for check in checks if check.is_final)


def _is_blurred(checks: Sequence[Check]) -> bool:
    """Whether an error is so large that a dtype says nothing, if it is of rounding."""
    return any(
        check.error > BLURRED * check.bound for check in checks if not check.is_final
    )


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
        runner = _InProcess(model_def, present, Path(folder), seed)
        judge = Judge(runner, ONE_DEVICE, x64=x64)
        verdicts = [judge(name) for name in names]
        expected = judge.expected(x64=x64)
    return Certificate(
        str(model_def.config.type),
        ONE_DEVICE,
        bounds_of(x64=x64),
        tuple(verdicts),
        vanishing=tuple(vanishing(expected)),
    )


@runtime_checkable
class Runner(Protocol):
    """Runs a subject on meshes."""

    def measure(
        self, mesh: str, expected: Measured | None, *, x64: bool, parts: Sequence[str]
    ) -> Measured:
        """Some numbers of a mesh, with those of the reference unless it is that."""
        ...

    def place(
        self, actual: Measured, expected: Measured, *, x64: bool, parts: Sequence[str]
    ) -> str:
        """The first place where numbers differ from those of the reference."""
        ...


def folder_name(*, x64: bool, parts: Sequence[str]) -> str:
    """Name of the folder of numbers of a dtype, and of some parts."""
    return "-".join(("float64" if x64 else "float32", *parts))


class Judge:
    """Compares meshes with the reference, in float64 where float32 does not decide.

    Where an error in float32 is beyond `BLURRED` bounds and float64 finds none, float32
    says nothing about the model: the meshes that follow are compared in float64 alone,
    as all are with `x64`.
    """

    def __init__(self, runner: Runner, reference: str, *, x64: bool) -> None:
        self._runner = runner
        self._reference = reference
        self._x64 = x64
        self._is_blurred = False
        self._lock = threading.Lock()
        # Of the reference alone: those of all meshes together can fill the memory.
        self._expected: dict[tuple[bool, tuple[str, ...]], Future[Measured]] = {}

    def expected(self, *, x64: bool, parts: Sequence[str] = PARTS) -> Measured:
        """Some numbers of the reference, which are computed once."""
        key = x64, tuple(parts)
        with self._lock:
            is_first = key not in self._expected
            result = self._expected.setdefault(key, Future())
        if is_first:
            try:
                numbers = self._runner.measure(
                    self._reference, None, x64=x64, parts=parts
                )
                result.set_result(numbers)
            except BaseException as error:
                result.set_exception(error)
        return result.result()

    def __call__(self, mesh: str) -> MeshVerdict:
        """Returns the verdict of a mesh; threads may ask for several at a time."""
        at_once = self._x64 or self._is_blurred
        # Its errors are not those of the mesh.
        if wrong := not_finite(self.expected(x64=at_once)):
            raise ValueError(
                f"mesh {self._reference} gives numbers that are not finite ({wrong}), "
                "with which nothing can be compared; look for their cause there first, "
                "such as a checkpoint of a run that had diverged"
            )
        narrow, wide, block, parts = (), (), "", PARTS
        try:
            if not at_once:
                narrow, block = self._checked(mesh, PARTS, x64=False)
                if not _final_pass(narrow):
                    return MeshVerdict(mesh, narrow, place=block)
                parts = PARTS if _is_blurred(narrow) else _broken(narrow)
            if parts:
                wide, block = self._checked(mesh, parts, x64=True)
                if _is_blurred(narrow) and not _broken(wide):
                    self._is_blurred = True
        except Exception as error:  # whatever a wrong sharding raises is a finding
            return MeshVerdict(mesh, place=f"it does not run: {error}")
        if self._x64:
            narrow, wide = wide, ()
        return MeshVerdict(mesh, narrow, wide, block)

    def _checked(
        self, mesh: str, parts: Sequence[str], *, x64: bool
    ) -> tuple[tuple[Check, ...], str]:
        """The checks of a mesh, and the place where it differs, if that is decided."""
        expected = self.expected(x64=x64, parts=parts)
        kind = {"x64": x64, "parts": parts}
        actual = self._runner.measure(mesh, expected, **kind)
        checks = tuple(compare(actual, expected, bounds_of(x64=x64)))
        differs = _broken(checks) if x64 else not _final_pass(checks)
        block = self._runner.place(actual, expected, **kind) if differs else ""
        return checks, block


class _InProcess:
    """Runs a model on the devices of this process."""

    def __init__(
        self, model_def: ModelDef, devices: Sequence[Any], folder: Path, seed: int
    ) -> None:
        self._model_def, self._devices = model_def, devices
        self._folder, self._seed = folder, seed

    def measure(
        self, mesh: str, expected: Measured | None, *, x64: bool, parts: Sequence[str]
    ) -> Measured:
        folder = self._folder / folder_name(x64=x64, parts=parts)
        with jax.enable_x64(x64):
            return measure(
                subject_of_model(self._model_def, x64=x64, seed=self._seed),
                mesh,
                self._devices,
                folder=folder / mesh,
                reference=None if expected is None else folder / ONE_DEVICE,
                expected=expected,
                parts=parts,
            )

    def place(
        self, actual: Measured, expected: Measured, *, x64: bool, parts: Sequence[str]
    ) -> str:
        del parts
        with jax.enable_x64(x64):
            subject = subject_of_model(self._model_def, x64=x64, seed=self._seed)
            outputs = block_outputs(subject, ONE_DEVICE, self._devices, expected.start)
            arguments = actual, expected, bounds_of(x64=x64), outputs
            return first_difference(subject, self._devices, *arguments)
