"""Bytes that a training step needs on a device, from XLA's memory analysis.

    python -m benchmarks.scale.memory [--meshes 1 domain2 domain4] [--model 025deg]

Read from the compiled program of each mesh on simulated devices; nothing is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compiled_step import MODELS, compile_step, model_block, program_bytes
from benchmarks.meshes import build_mesh, num_devices, parse_mesh
from benchmarks.report import Table, add_out_option, publish
from credit_jax.parallel.mesh.device_mesh import DOMAIN, MeshAxes
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.params.remat import ACTIVATIONS
from credit_jax.plan.estimates import FLOAT32, local_size

DEFAULT_MESHES = ("1", "domain2", "domain4", "domain8")
HEADER = [
    "mesh",
    "arguments",
    "temporary",
    "of them gradients",
    "peak",
    "activations x shards / one device",
]

_INTRO = (
    "MB a device. Arguments are state and batch, temporary is what XLA keeps besides "
    "while the step runs: gradients of all parameters, which every domain shard has, "
    "and else activations. The last column is 1 where activations fall as one over "
    "the number of domain shards."
)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Compiles every mesh, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    ensure_devices(max(map(num_devices, options.meshes)))
    model, runs = model_block(options.model), []
    for mesh in options.meshes:
        model_def, compiled = compile_step(
            model, mesh, batch=options.batch, remat=options.remat
        )
        measured = program_bytes(compiled)
        axes = MeshAxes.from_mesh(build_mesh(mesh))
        param_specs = model_def.param_specs.values()
        gradients = FLOAT32 * sum(local_size(d, axes) for d in param_specs)
        runs.append({"mesh": mesh, **measured, "gradients": gradients})
    table = Table("MB per device", HEADER, [_cells(run, runs[0]) for run in runs])
    return publish(
        "memory",
        ["# Memory of a training step", _INTRO, table],
        {"runs": runs},
        config={"batch": options.batch, "remat": options.remat, "model": model},
        folder=options.out,
    )


def _cells(run: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    shards = parse_mesh(run["mesh"]).get(DOMAIN, 1)
    mine, alone = (r["temporary"] - r["gradients"] for r in (run, first))
    fall = mine * shards / alone
    names = ("arguments", "temporary", "gradients", "peak")
    sizes = [f"{run[name] / 1e6:.2f}" for name in names]
    return [run["mesh"], *sizes, f"{fall:.2f}"]


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.memory")
    add = parser.add_argument
    add("--meshes", nargs="+", default=list(DEFAULT_MESHES), metavar="MESH")
    add("--model", choices=MODELS, default="025deg")
    add("--batch", type=int, default=1, help="samples of a global batch")
    add(
        "--remat",
        choices=ACTIVATIONS,
        default="full",
        help="activation checkpointing",
    )
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
