"""Derived times of meshes beside those of programs that XLA compiled.

    python -m benchmarks.mesh_choice

`credit-jax mesh` derives the time of a step from traced programs (docs/mesh.md); here
it does so for the programs of `benchmarks.accelerator` in benchmarks/reports, which
were compiled for a GPU. Nothing is run on one: both are lower bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.meshes import num_data, num_devices, parse_mesh
from benchmarks.report import REPORTS, Table, add_out_option, publish
from credit_jax.config import load_config
from credit_jax.config.config import Config
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan.accelerators import ACCELERATORS
from credit_jax.plan.mesh_search import Choice, Cluster, MeshSearch

NAME, NODE = "mesh_choice", 8
CONFIG = Path(__file__).parents[1] / "configs" / "wxformer_025deg.yaml"
PROGRAMS = {"h100": "accelerator_025deg.json", "a100": "accelerator_025deg-a100.json"}
HEADER = ("device", "program", "compiled, ms", "derived, ms", "derived / compiled")
_INTRODUCTION = """# Meshes: derived and compiled

Milliseconds of a training step of configs/wxformer_025deg.yaml, one sample a
data-parallel rank: by the account of the program that XLA compiled for the device
(`python -m benchmarks.accelerator`), and as `credit-jax mesh` derives it from the
traced gradient (docs/mesh.md). Nothing was run on a GPU: both are lower bounds. The
constants of the derivation are from the H100's programs; those of the A100 were not
used. One model and these meshes are compared: exhaustive compilation of several
configs was not done."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh_choice")
    add_out_option(parser)
    options = parser.parse_args(arguments)
    ensure_devices(NODE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = load_config(CONFIG)
    compared = {name: compare(name, config) for name in PROGRAMS}
    rows = [
        [
            name,
            row["title"],
            f"{1e3 * row['compiled']:.1f}",
            f"{1e3 * row['derived']:.1f}",
            f"{row['derived'] / row['compiled']:.2f}",
        ]
        for name, result in compared.items()
        for row in result["programs"]
    ]
    lines = [
        f"{ACCELERATORS[name].name}: rank correlation of samples/s "
        f"{result['correlation']:.2f}; the first by derivation has "
        f"{result['share_of_best']:.0%} of the best compiled rate."
        for name, result in compared.items()
    ]
    publish(
        NAME,
        [_INTRODUCTION, Table("Steps", HEADER, rows), "\n\n".join(lines)],
        {"compared": compared},
        config={"config": CONFIG.name, "programs": PROGRAMS},
        folder=options.out,
    )
    return 0


def compare(device: str, config: Config) -> dict[str, Any]:
    """Compares the programs of a device, in samples per second and device.

    Args:
        device: one of `PROGRAMS`.
        config: config of their model.
    """
    report = json.loads((REPORTS / PROGRAMS[device]).read_text())
    programs = [p for p in report["programs"] if "mesh" in p and "parts" in p]
    trainer = config.trainer.model_copy(update={"use_ema": False})
    search = MeshSearch(
        config.model_copy(update={"trainer": trainer}),
        build(config.model),
        Cluster(ACCELERATORS[device], NODE, NODE, ACCELERATORS[device].memory),
        batch=NODE,
    )
    rows = []
    for program in programs:
        derived = search.times(choice_of(program)).total
        rates = num_data(program["mesh"]) / num_devices(program["mesh"])
        rows.append(
            {
                "title": program["title"],
                "compiled": program["step"],
                "derived": derived,
                "rates": (rates / program["step"], rates / derived),
            }
        )
    compiled, derived = np.array([row["rates"] for row in rows]).T
    ranks = (np.argsort(np.argsort(rates)) for rates in (compiled, derived))
    return {
        "programs": rows,
        "correlation": float(np.corrcoef(*ranks)[0, 1]),
        "share_of_best": float(compiled[np.argmax(derived)] / compiled.max()),
    }


def choice_of(program: Mapping[str, Any]) -> Choice:
    """The choice that a compiled program is of."""
    dims = ParallelDims(
        **parse_mesh(program["mesh"]), world_size=num_devices(program["mesh"])
    )
    return Choice(dims, program["remat"], program["over_domain"])


if __name__ == "__main__":
    sys.exit(main())
