"""Step time on many accelerators, derived from programs compiled for one kind.

    python -m benchmarks.scale [--report FILE] [--launch 2] [--remat none]

Within a node, times of kernels and exposed transfers are those of the programs that
`benchmarks.accelerator` compiled for its meshes; across nodes, time is computed from
the bytes of parameters and gradients. Nothing is run or measured; docs/scaling.md lists
the assumptions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.meshes import num_devices, parse_mesh
from benchmarks.report import REPORTS, Table, add_out_option, publish
from benchmarks.scale.comm_volume import FSDP, SUMS, least_volume
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, MeshAxes


@dataclass(frozen=True)
class Machine:
    """Links of a cluster; the defaults are the data sheet of H100 SXM nodes.

    Attributes:
        node: devices that share the fast links.
        fast: bytes per second that a device sends within its node (NVLink 4).
        slow: bytes per second that a device sends to other nodes (400 Gb/s).
    """

    node: int = 8
    fast: float = ACCELERATORS["h100"].link
    slow: float = ACCELERATORS["h100"].network


# (devices, mesh within a node); the remaining devices are data parallel.
ROWS = (
    (1, "1"),
    (8, "1"),
    (8, "domain8"),
    (8, "tp2xdomain4"),
    (64, "1"),
    (64, "domain8"),
    (1024, "1"),
    (1024, "domain8"),
    (1024, "tp2xdomain4"),
)
HEADER = [
    "devices",
    "mesh",
    "samples",
    "kernels",
    "transfers wait",
    "FSDP and sums",
    "step, none hidden",
    "step, FSDP hidden",
    "samples/s",
    "efficiency",
]


def main(arguments: Sequence[str] | None = None) -> Path:
    """Prints the table, writes the report; returns its path.

    Raises:
        ValueError: the report has no program of one device with this policy.
    """
    options = _parse(arguments)
    report = json.loads(options.report.read_text())
    programs = {
        program["mesh"]: program
        for program in report["programs"]
        if program["remat"] == options.remat
    }
    if "1" not in programs:
        raise ValueError(
            f"{options.report} has no program of one device, remat {options.remat}; "
            f"make one with python -m benchmarks.accelerator --remat {options.remat}"
        )
    model = report["recipe"]["config"]["model"]
    machine, model_def = Machine(), build(model)
    times = [
        step_time(model_def, programs[mesh], devices, machine, options.launch)
        for devices, mesh in ROWS
        if mesh in programs
    ]
    alone = times[0]["rate"]
    derived = Table(
        "Derived, milliseconds", HEADER, [_cells(time, alone) for time in times]
    )
    return publish(
        "scaling",
        ["# Scaling, derived", _TIMES, derived],
        {"target": report["target"], "times": times},
        config={
            "machine": asdict(machine),
            "remat": options.remat,
            "launch_us": options.launch,
            "report": options.report.name,
            "programs": report["recipe"]["commit"],
            "model": model,
        },
        folder=options.out,
    )


_TIMES = (
    "Milliseconds at the roofline of the programs compiled for each mesh within a "
    "node, see docs/scaling.md; efficiency is samples a second and device, as a part "
    "of one device's. Lower bounds of a step, no measurements."
)


def step_time(
    model_def: ModelDef,
    program: Mapping[str, Any],
    devices: int,
    machine: Machine,
    launch: str,
) -> dict[str, Any]:
    """Seconds of a step with one sample a data-parallel rank.

    Args:
        model_def: a WXFormer.
        program: account of the mesh within a node, see `benchmarks.accelerator`.
        devices: total; those beyond the inner mesh are FSDP ranks.
        machine: the cluster.
        launch: microseconds of a kernel besides its work, "1", "2" or "5".
    """
    ranks = devices // num_devices(program["mesh"])
    waits = program["exposed_seconds"]
    link = machine.fast if devices <= machine.node else machine.slow
    sent, within = _fsdp_bytes(model_def, program, ranks)
    fsdp = sent / link + within / machine.fast
    step = program["steps"][launch]
    return {
        "devices": devices,
        "mesh": program["mesh"],
        "ranks": ranks,
        "kernels": step - waits,
        "waits": waits,
        "fsdp": fsdp,
        "none_hidden": step + fsdp,
        "fsdp_hidden": max(step, fsdp),
        "rate": ranks / max(step, fsdp),
    }


def _fsdp_bytes(
    model_def: ModelDef, program: Mapping[str, Any], ranks: int
) -> tuple[float, float]:
    """Bytes of parameters and gradients that a device sends, not in its program.

    To other ranks: two gathers in bfloat16 and a scatter in float32, and the sums of
    gradients that are not sharded. Within a node: parameters that are sharded over
    domain, too, are gathered there once more, in the backward pass.

    Args:
        model_def, program: as for `step_time`.
        ranks: number of FSDP ranks.

    Returns:
        Bytes to other ranks, and to devices of the node.
    """
    mesh = parse_mesh(program["mesh"])
    shared = program["over_domain"]
    least, inner = (
        least_volume(
            model_def,
            MeshAxes.from_degrees(mesh | {DP_SHARD: count}),
            1,
            over_domain=shared,
        )
        for count in (ranks, 1)
    )
    within = 0.0
    if shared and ranks > 1:
        alone = MeshAxes.from_degrees(mesh | {DP_SHARD: mesh.get(DOMAIN, 1), DOMAIN: 1})
        within = least_volume(model_def, alone, 1)[FSDP] / 3 / 2
    return least[FSDP] * 2 / 3 + max(least[SUMS] - inner[SUMS], 0.0), within


def _cells(time: Mapping[str, Any], alone: float) -> list[str]:
    mesh = f"dp{time['ranks']}" + ("" if time["mesh"] == "1" else f" x {time['mesh']}")
    numbers = ("kernels", "waits", "fsdp", "none_hidden", "fsdp_hidden")
    return [
        str(time["devices"]),
        mesh,
        str(time["ranks"]),
        *(f"{time[name] * 1000:.1f}" for name in numbers),
        f"{time['rate']:.1f}",
        f"{time['rate'] / time['devices'] / alone:.0%}",
    ]


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    add = parser.add_argument
    report = REPORTS / "accelerator_025deg.json"
    add("--report", type=Path, default=report, help="of benchmarks.accelerator")
    add("--launch", choices=("1", "2", "5"), default="2", help="us of a kernel")
    add("--remat", default="none", help="activation checkpointing")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
