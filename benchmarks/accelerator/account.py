"""Kernels, memory traffic and communication of a compiled program, as one document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.accelerator.compile_step import Compiled
from benchmarks.accelerator.float8 import float8_of
from benchmarks.accelerator.kernels import Kernel, kernels
from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import Program, parse
from benchmarks.accelerator.roofline import (
    LAUNCHES,
    as_json,
    kernel_seconds,
    total,
    work_by,
)
from benchmarks.accelerator.targets import TARGETS, Target
from benchmarks.meshes import num_data, num_devices, parse_mesh
from credit_jax.parallel.mesh.device_mesh import DOMAIN, built_degrees

_LONGEST = 20
# A program has grown if one of WATCHED exceeds that of the older one by this fraction.
GROWTH = 0.05
WATCHED = ("kernels", "bytes")


def account(compiled: Compiled) -> dict[str, Any]:
    """Returns the account of a compiled step.

    Returns:
        job, totals ("kernels", "bytes", "flops", "seconds" of the roofline), "parts",
        "phases" and "kinds" of kernels, "collectives", "memory" and "steps": seconds of
        a step by microseconds of a launch (0 alone where launches cost nothing),
        exposed transfers included.
    """
    job, counts = compiled.job, compiled.account
    target, program = TARGETS[job.target], parse(compiled.text)
    every = kernels(program)
    degrees = built_degrees(parse_mesh(job.mesh))
    sent = summary(transfers(program, degrees, target), target)
    devices = num_devices(job.mesh) / num_data(job.mesh)
    return {
        "mesh": job.mesh,
        "remat": job.remat,
        "precision": job.precision,
        "samples": job.samples,
        "over_domain": job.over_domain and DOMAIN in degrees,
        "title": job.title,
        **_float8(compiled, program),
        **counted(every, target, sum(row["exposed_seconds"] for row in sent)),
        "useful_flops": counts["useful"] / devices,
        "traced_flops": counts["traced"],
        "parts": as_json(work_by(lambda kernel: kernel.part, every, target)),
        "phases": as_json(work_by(lambda kernel: kernel.phase, every, target)),
        "collectives": sent,
        "memory": counts["memory"],
        "compile_seconds": counts["compile_seconds"],
        "estimate_seconds": counts["estimate_seconds"],
    }


def counted(
    every: Sequence[Kernel], target: Target, exposed: float = 0.0
) -> dict[str, Any]:
    """Totals of kernels, their kinds, the longest, and the seconds of a step."""
    work = total(every, target)
    longest = sorted(every, key=lambda k: -k.times * kernel_seconds(k, target))
    launches = LAUNCHES if target.launch else (0.0,)
    return {
        "kernels": work.kernels,
        "bytes": work.bytes,
        "flops": work.flops,
        "seconds": work.seconds,
        "exposed_seconds": exposed,
        "steps": {f"{1e6 * us:.0f}": work.step(us) + exposed for us in launches},
        "step": work.step(target.launch) + exposed,
        "kinds": as_json(work_by(lambda kernel: kernel.kind, every, target)),
        "longest": [_entry(kernel, target) for kernel in longest[:_LONGEST]],
    }


def grown(program: dict[str, Any], older: dict[str, Any]) -> list[str]:
    """Lists what grew by more than `GROWTH` since an older account of the same job."""
    lines = []
    for name in WATCHED:
        before, now = older[name], program[name]
        if now > (1 + GROWTH) * before:
            lines.append(
                f"{program['title']}: {name} grew from "
                f"{before:,} to {now:,}, {now / before - 1:.1%}; at most {GROWTH:.0%} "
                "is allowed. Find the part that grew in the tables; if it has to be, "
                "commit the new report"
            )
    return lines


def _float8(compiled: Compiled, program: Program) -> dict[str, Any]:
    """The part of an account about layers in float8, if there are any."""
    if compiled.job.float8 is None:
        return {}
    return {
        "float8": compiled.job.float8,
        "float8_traced": compiled.account["float8_traced"],
        "float8_products": float8_of(program),
    }


def same_job(program: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two accounts are of the same job."""
    names = ("title", "precision", "samples")
    return all(program.get(name) == other.get(name) for name in names)


def counts_of(kernel: Kernel) -> dict[str, Any]:
    """What a kernel is, and its counts, as JSON values."""
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "part": kernel.part,
        "phase": kernel.phase,
        "times": kernel.times,
        "bytes": kernel.bytes,
        "flops": kernel.flops,
    }


def _entry(kernel: Kernel, target: Target) -> dict[str, Any]:
    return {
        **counts_of(kernel),
        "seconds": kernel.times * kernel_seconds(kernel, target),
        "op_name": "/".join(kernel.op_name.split("/")[-5:]),
    }
