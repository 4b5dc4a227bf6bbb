"""Certificates: what was compared on which meshes, and whether it is the same."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from credit_jax.certification.measure import PARTS, Measured, measure
from credit_jax.certification.meshes import (
    CANDIDATES,
    ONE_DEVICE,
    dims_of,
    fitting_meshes,
    problems_of,
)
from credit_jax.certification.place import block_outputs, first_difference
from credit_jax.certification.subject import (
    NUM_SAMPLES,
    Subject,
    subject_of_model,
)
from credit_jax.certification.verdict import (
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
            worst = max(checks, key=lambda check: (not check.passed, _share(check)))
            where = f" ({worst.where})" if worst.where else ""
            decided = ""
            if self.in_float64 and self.passed:
                decided = ", the same in float64" if self.checks else " of float64"
            yield (
                f"{name} {state}: {worst.quantity}{where} {worst.error:.1e}, bound "
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


def _share(check: Check) -> float:
    """An error as a share of its bound."""
    return check.error / check.bound if check.bound else check.error


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
    names = [
        name
        for name in chosen_meshes(model_def, meshes, len(present))
        if name != ONE_DEVICE
    ]
    with tempfile.TemporaryDirectory() as folder:
        runner = _InProcess(model_def, present, Path(folder), seed)
        verdicts = list(map(Judge(runner, ONE_DEVICE, x64=x64), names))
        expected = runner.measured(ONE_DEVICE, x64=x64)
    return Certificate(
        str(model_def.config.type),
        ONE_DEVICE,
        bounds_of(x64=x64),
        tuple(verdicts),
        vanishing=tuple(vanishing(expected)),
    )


def chosen_meshes(
    model_def: ModelDef,
    names: Sequence[str] | None,
    num_devices: int,
    *,
    num_samples: int = NUM_SAMPLES,
    num_ranks: int | None = None,
) -> list[str]:
    """Returns the meshes to compare; all that fit, or those asked for.

    Args:
        model_def: the model.
        names: names of the meshes; None for all of `CANDIDATES` that fit.
        num_devices: number of devices.
        num_samples, num_ranks: see `fitting_meshes`.

    Raises:
        ValueError: one that was asked for does not fit.
    """
    fitting = fitting_meshes(
        model_def,
        num_devices=num_devices,
        num_samples=num_samples,
        num_ranks=num_ranks,
        names=CANDIDATES if names is None else names,
    )
    for name in () if names is None else names:
        if name not in fitting:
            ranks = dims_of(name).batch_size
            reasons = problems_of(name, model_def, num_devices) or [
                f"its {ranks} data-parallel ranks do not fit: expected "
                + (f"{num_ranks}" if num_ranks else f"a divisor of {num_samples}")
            ]
            raise ValueError(f"--meshes: {name} does not fit: {'; '.join(reasons)}")
    return fitting


def reference_of(num_ranks: int | None) -> str:
    """Name of the mesh that others are compared with: one device if it can be."""
    return ONE_DEVICE if num_ranks is None else f"ddp{num_ranks}"


@runtime_checkable
class Runner(Protocol):
    """Runs a subject on meshes."""

    def measured(
        self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS
    ) -> Measured:
        """Some numbers of a mesh; those of the reference are computed once."""
        ...

    def place(self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS) -> str:
        """The first place where these numbers differ from those of the reference."""
        ...


def folder_name(*, x64: bool, parts: Sequence[str]) -> str:
    """Name of the folder of numbers of a dtype, and of some parts."""
    return "-".join(("float64" if x64 else "float32", *parts))


class Judge:
    """Compares meshes with the reference, in float64 where float32 does not decide.

    Where an error in float32 is beyond `BLURRED` bounds and float64 finds none, float32
    says nothing about the model: the meshes that follow are compared in float64 alone.

    Args:
        runner: runs the subject.
        reference: name of the mesh that others are compared with.
        x64: compare all in float64.
    """

    def __init__(self, runner: Runner, reference: str, *, x64: bool) -> None:
        self._runner = runner
        self._reference = reference
        self._x64 = x64
        self._is_blurred = False

    def __call__(self, mesh: str) -> MeshVerdict:
        """Returns the verdict of a mesh; threads may ask for several at a time."""
        at_once = self._x64 or self._is_blurred
        # Its errors are not those of the mesh.
        expected = self._runner.measured(self._reference, x64=at_once)
        if wrong := not_finite(expected):
            raise ValueError(
                f"mesh {self._reference} gives numbers that are not finite ({wrong}), "
                "with which nothing can be compared; look for their cause there first, "
                "such as a checkpoint of a run that had diverged"
            )
        narrow, wide, place, parts = (), (), "", PARTS
        try:
            if not at_once:
                narrow = self._checks(mesh, PARTS, x64=False)
                if not _final_pass(narrow):
                    place = self._runner.place(mesh, x64=False)
                    return MeshVerdict(mesh, narrow, place=place)
                parts = PARTS if _is_blurred(narrow) else _broken(narrow)
            if parts:
                wide = self._checks(mesh, parts, x64=True)
            if _broken(wide):
                place = self._runner.place(mesh, x64=True, parts=parts)
            elif _is_blurred(narrow):
                self._is_blurred = True
        except Exception as error:  # whatever a wrong sharding raises is a finding
            return MeshVerdict(mesh, place=f"it does not run: {error}")
        if self._x64:
            narrow, wide = wide, ()
        return MeshVerdict(mesh, narrow, wide, place)

    def _checks(
        self, mesh: str, parts: Sequence[str], *, x64: bool
    ) -> tuple[Check, ...]:
        expected = self._runner.measured(self._reference, x64=x64, parts=parts)
        actual = self._runner.measured(mesh, x64=x64, parts=parts)
        return tuple(compare(actual, expected, bounds_of(x64=x64)))


class _InProcess:
    """Runs a model on the devices of this process."""

    def __init__(
        self, model_def: ModelDef, devices: Sequence[Any], folder: Path, seed: int
    ) -> None:
        self._model_def = model_def
        self._devices = devices
        self._folder = folder
        self._seed = seed
        self._seen: dict[tuple[str, bool, tuple[str, ...]], Measured] = {}

    def measured(
        self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS
    ) -> Measured:
        key = (mesh, x64, tuple(parts))
        if key not in self._seen:
            folder = self._folder / folder_name(x64=x64, parts=parts)
            reference, expected = None, None
            if mesh != ONE_DEVICE:
                reference = folder / ONE_DEVICE
                expected = self.measured(ONE_DEVICE, x64=x64, parts=parts)
            with jax.enable_x64(x64):
                self._seen[key] = measure(
                    self._subject(x64=x64),
                    mesh,
                    self._devices,
                    folder=folder / mesh,
                    reference=reference,
                    expected=expected,
                    parts=parts,
                )
        return self._seen[key]

    def place(self, mesh: str, *, x64: bool, parts: Sequence[str] = PARTS) -> str:
        actual = self.measured(mesh, x64=x64, parts=parts)
        expected = self.measured(ONE_DEVICE, x64=x64, parts=parts)
        bounds = bounds_of(x64=x64)
        with jax.enable_x64(x64):
            subject, devices = self._subject(x64=x64), self._devices
            outputs = block_outputs(subject, ONE_DEVICE, devices, expected.start)
            return first_difference(subject, devices, actual, expected, bounds, outputs)

    def _subject(self, *, x64: bool) -> Subject:
        return subject_of_model(self._model_def, x64=x64, seed=self._seed)
