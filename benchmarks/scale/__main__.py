"""Step time on many accelerators, derived from the compiled step.

    python -m benchmarks.scale [--model 025deg] [--mfu 0.35]

Operations and bytes a device are read from the step of each mesh, compiled for
simulated devices; time is arithmetic on them. Nothing is run or measured;
docs/scaling.md lists the assumptions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compiled_step import MODELS, model_block, trace_step
from benchmarks.flops import flops_of
from benchmarks.meshes import build_mesh, num_devices, parse_mesh
from benchmarks.report import Table, add_out_option, publish
from benchmarks.scale.comm_volume import (
    EXCHANGE,
    FSDP,
    HALO,
    SUMS,
    TENSOR,
    by_purpose,
    least_volume,
    purpose,
)
from benchmarks.scale.hlo import collectives
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.axes import DP_SHARD, MeshAxes
from credit_jax.parallel.mesh.devices import ensure_devices


@dataclass(frozen=True)
class Machine:
    """A cluster of accelerators; the defaults are the data sheet of an H100 SXM node.

    Attributes:
        peak: floating-point operations a second of a device (dense bfloat16).
        node: devices that share the fast links.
        fast: bytes a second that a device sends within its node (NVLink 4).
        slow: bytes a second that a device sends to other nodes (400 Gb/s).
        latency: seconds of a collective within a node besides its transfer.
        mfu: part of the peak that matrix products and convolutions reach.
    """

    peak: float = 989e12
    node: int = 8
    fast: float = 450e9
    slow: float = 50e9
    latency: float = 10e-6
    mfu: float = 0.35


@dataclass(frozen=True)
class Part:
    """Work of a device in a step on the mesh within a node, one sample a mesh.

    Attributes:
        mesh: its name.
        flops: operations.
        bytes: sent, by purpose, activations in bfloat16.
        number: collectives of tensor, halo and long attention.
    """

    mesh: str
    flops: float
    bytes: dict[str, float]
    number: int


INNER = ("1", "domain2", "domain4", "domain8", "tp2xdomain4")
# (devices, mesh within a node): data parallel over all the rest.
ROWS = (
    (1, "1"),
    (8, "1"),
    (8, "domain8"),
    (8, "tp2xdomain4"),
    (64, "1"),
    (64, "domain8"),
    (1024, "domain4"),
    (1024, "domain8"),
)
HEADER = [
    "devices",
    "mesh",
    "samples",
    "compute",
    "halo",
    "long attention",
    "tensor",
    "FSDP and sums",
    "step, none hidden",
    "step, FSDP hidden",
    "samples/s",
    "efficiency",
]
# Activations are sent in bfloat16; the counts are of float32.
ACTIVATIONS = (TENSOR, HALO, EXCHANGE)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Compiles every inner mesh, prints the table, writes the report."""
    options = _parse(arguments)
    rows = [row for row in ROWS if row[1] in options.meshes]
    ensure_devices(max(num_devices(mesh) for mesh in options.meshes))
    model = model_block(options.model)
    parts = {mesh: _part(model, mesh, options.remat) for mesh in options.meshes}
    machine = Machine(mfu=options.mfu)
    model_def = build(model)
    times = [step_time(model_def, parts[m], n, machine) for n, m in rows]
    best = max(t["rate"] / t["devices"] for t in times)
    derived = Table(
        "Derived, milliseconds", HEADER, [_cells(time, best) for time in times]
    )
    counts = [
        [
            part.mesh,
            f"{part.flops / 1e12:.3f}",
            f"{parts['1'].flops / part.flops:.2f}" if "1" in parts else "",
            *(f"{part.bytes[name] / 1e6:.1f}" for name in ACTIVATIONS),
            str(part.number),
        ]
        for part in parts.values()
    ]
    header = ["mesh", "TFLOP", "x fewer", *(f"{n}, MB" for n in ACTIVATIONS), "number"]
    counted = Table("Counts per device", header, counts)
    return publish(
        "scaling",
        ["# Scaling, derived", _COUNTS, counted, _TIMES, derived],
        {"parts": [asdict(part) for part in parts.values()], "times": times},
        config={"machine": asdict(machine), "remat": options.remat, "model": model},
        folder=options.out,
    )


_COUNTS = (
    "Counts a device of the training step of one sample, from the step traced "
    "(operations) and compiled (bytes sent) for each mesh; activations in bfloat16."
)
_TIMES = (
    "Milliseconds derived from them, see docs/scaling.md. Efficiency is samples a "
    "second and device, as a part of the best row. These are no measurements."
)


def _part(model: Mapping[str, Any], mesh: str, remat: str) -> Part:
    _, traced = trace_step(model, mesh, batch=1, remat=remat)
    found = collectives(traced.lower().compile().as_text())
    shape = dict(build_mesh(mesh).shape)
    sent = by_purpose(found, shape)
    number = sum(c.times for c in found if purpose(c, shape) in ACTIVATIONS)
    halved = {name: sent[name] / 2 for name in ACTIVATIONS}
    return Part(mesh, flops_of(traced.jaxpr), sent | halved, int(number))


def step_time(
    model_def: ModelDef, part: Part, devices: int, machine: Machine
) -> dict[str, Any]:
    """Seconds of a step with one sample a data-parallel rank.

    Args:
        model_def: a WXFormer.
        part: counts of the mesh within a node.
        devices: total; those beyond the inner mesh are FSDP ranks.
        machine: the cluster.
    """
    inner = num_devices(part.mesh)
    ranks = devices // inner
    degrees = parse_mesh(part.mesh) | {DP_SHARD: ranks}
    least = least_volume(model_def, MeshAxes.from_degrees(degrees), 1)
    # Two gathers in bfloat16 and a scatter in float32, of three in float32.
    parameters = least[FSDP] * 2 / 3 + least[SUMS]
    link = machine.fast if devices <= machine.node else machine.slow
    latency = machine.latency * part.number
    seconds = {name: part.bytes[name] / machine.fast for name in ACTIVATIONS}
    compute = part.flops / (machine.peak * machine.mfu)
    exposed = compute + sum(seconds.values()) + latency
    fsdp = parameters / link
    return {
        "devices": devices,
        "mesh": part.mesh,
        "ranks": ranks,
        "compute": compute,
        **seconds,
        "latency": latency,
        "fsdp": fsdp,
        "none_hidden": exposed + fsdp,
        "fsdp_hidden": max(exposed, fsdp),
        "rate": ranks / max(exposed, fsdp),
    }


def _cells(time: Mapping[str, Any], best: float) -> list[str]:
    mesh = f"dp{time['ranks']}" + ("" if time["mesh"] == "1" else f" x {time['mesh']}")
    numbers = ("compute", HALO, EXCHANGE, TENSOR, "fsdp", "none_hidden", "fsdp_hidden")
    return [
        str(time["devices"]),
        mesh,
        str(time["ranks"]),
        *(f"{time[name] * 1000:.1f}" for name in numbers),
        f"{time['rate']:.1f}",
        f"{time['rate'] / time['devices'] / best:.0%}",
    ]


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    add = parser.add_argument
    add("--model", choices=MODELS, default="025deg")
    add("--meshes", nargs="+", default=list(INNER), metavar="MESH")
    add("--remat", default="full", help="activation checkpointing")
    add("--mfu", type=float, default=Machine.mfu, help="part of the peak reached")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
