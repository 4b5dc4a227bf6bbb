"""Derived times of meshes beside those of programs that XLA compiled.

    python -m benchmarks.mesh_choice                    # compiled times of the report
    python -m benchmarks.mesh_choice --compile          # and of programs it lacks
    python -m benchmarks.mesh_choice --compile --configs fuxi_6h

`credit-jax mesh` derives the time of a step from traced programs (docs/mesh.md); here
it does so for the programs of `benchmarks.accelerator` in benchmarks/reports, and for
small forms of other configs on meshes of eight devices (`mesh_cases`), all compiled
for a GPU. Nothing is run on one: both are lower bounds. Compiled times that are in the
report stay; configs that are not named keep their rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accelerator.targets import ROOT
from benchmarks.mesh_cases import (
    BATCH,
    CASES,
    CHOICES,
    TARGET,
    Case,
    job_of,
    stored_account,
)
from benchmarks.meshes import num_data, num_devices, parse_mesh
from benchmarks.report import REPORTS, Table, add_out_option, publish
from credit_jax.config import Config, build_config, load_config
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.extensions.mesh_choice.search import (
    Cluster,
    MeshChoice,
    MeshSearch,
    replicas,
)
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.mesh.dims import ParallelDims

NAME, NODE = "mesh_choice", 8
ACCOUNTS = ROOT / ".cache" / "mesh_choice"
CONFIG = Path(__file__).parents[1] / "configs" / "wxformer_025deg.yaml"
PROGRAMS = {"h100": "accelerator_025deg.json", "a100": "accelerator_025deg-a100.json"}
HEADER = ("device", "program", "compiled, ms", "derived, ms", "derived / compiled")
CASE_HEADER = (
    "config",
    "programs",
    "slowest / fastest",
    "rank correlation",
    "first by derivation",
    "best compiled",
    "rate of the first / best",
    "derived / compiled",
)
STEP_HEADER = (
    "config",
    "program",
    "compiled, ms",
    "kernels",
    "launches",
    "transfers",
    "derived, ms",
    "kernels",
    "launches",
    "transfers",
)
_INTRODUCTION = """# Meshes: derived and compiled

Milliseconds of a training step by the account of the program that XLA compiled for the
device, and as `credit-jax mesh` derives it from the traced gradient (docs/mesh.md).
Nothing was run on a GPU: both are lower bounds.

## configs/wxformer_025deg.yaml as it is

One sample a data-parallel rank, programs of `python -m benchmarks.accelerator`. What is
exposed of transfers, and the update, are from the H100's; kernels are not fitted."""
_SMALL = """## Small forms of {configs} of {all_configs} configs on eight H100s

Updates of {batch} samples in bfloat16. The layers of a config are as wide as it has
them, blocks are fewer, and some grids are others (in the JSON), so that kernels of a
sample take milliseconds and all samples fit at a time. {count} programs of eight
devices were compiled: replicas of one device, of two, and of eight, not all that
`credit-jax mesh` ranks. XLA optimized and scheduled them; machine code was not
made. `python -m benchmarks.mesh_choice --compile` compiles what is missing: more
meshes, what is recomputed, parameters over domain, and the other configs. The rate of
the first is that of its compiled program."""
_STEPS = """## Their steps

Parts in milliseconds: kernels at the roofline, their launches, and transfers that
nothing hides; the derived update counts as kernels."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and writes the report."""
    options = _parse(arguments)
    ensure_devices(NODE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = load_config(CONFIG)
        compared = {name: compare(name, config) for name in PROGRAMS}
        earlier = options.out / f"{NAME}.json"
        cases = json.loads(earlier.read_text())["cases"] if earlier.exists() else {}
        for name in options.configs:
            result = compare_case(CASES[name], options, cases.get(name, {}))
            if result["programs"]:
                cases[name] = result
                rows = {key: cases[key] for key in CASES if key in cases}
                _publish(compared, rows, options.out)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh_choice")
    add_out_option(parser)
    add = parser.add_argument
    add("--configs", nargs="+", choices=CASES, default=list(CASES))
    add("--compile", action="store_true", help="compile programs that are not stored")
    add(
        "--programs",
        type=int,
        default=len(CHOICES),
        help="number of programs of a config (default: all)",
    )
    add(
        "--accounts",
        type=Path,
        default=ACCOUNTS,
        help=f"folder of the accounts of programs (default: {ACCOUNTS})",
    )
    return parser.parse_args(arguments)


def _publish(
    compared: Mapping[str, Any], cases: Mapping[str, Any], folder: Path
) -> None:
    """Writes the report of what has been compared."""
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
    count = sum(len(result["programs"]) for result in cases.values())
    publish(
        NAME,
        [
            _INTRODUCTION,
            Table("Steps", HEADER, rows),
            "\n\n".join(lines),
            _SMALL.format(
                configs=len(cases), all_configs=len(CASES), batch=BATCH, count=count
            ),
            Table("Choices", CASE_HEADER, [_case_row(*it) for it in cases.items()]),
            _STEPS,
            Table("Programs", STEP_HEADER, [*_step_rows(cases)]),
        ],
        {"compared": compared, "cases": cases},
        config={"config": CONFIG.name, "programs": PROGRAMS},
        folder=folder,
    )


def _case_row(name: str, result: Mapping[str, Any]) -> list[str]:
    programs = result["programs"]
    steps = [row["compiled"] for row in programs]
    ratios = [row["derived"] / row["compiled"] for row in programs]
    return [
        name,
        str(len(programs)),
        f"{max(steps) / min(steps):.2f}",
        f"{result['correlation']:.2f}",
        result["first"],
        result["best"],
        f"{result['share_of_best']:.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    ]


def _step_rows(cases: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, result in cases.items():
        for row in result["programs"]:
            sides = [
                (row[side], *row[f"{side}_parts"]) for side in ("compiled", "derived")
            ]
            numbers = [f"{1e3 * second:.2f}" for side in sides for second in side]
            yield [name, row["title"], *numbers]


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
    return {"programs": rows, **_agreement([row["rates"] for row in rows])}


def compare_case(
    case: Case, options: argparse.Namespace, earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """Compares the choices of a small config on the devices of a node.

    Args:
        case: the config.
        options: see `_parse`.
        earlier: its result in the report.
    """
    options.accounts.mkdir(parents=True, exist_ok=True)
    config = build_config(case.mapping(options.accounts))
    data = config.data.model_copy(update={"forecast_len": 1})
    model_def = build(config.model)
    search = MeshSearch(
        config.model_copy(update={"data": data}),
        model_def,
        Cluster(ACCELERATORS[TARGET], NODE, NODE, inf),
        batch=BATCH,
    )
    runs_on = {
        (dims.ep, dims.tp, dims.domain) for dims in replicas(model_def, NODE, NODE)
    }
    launch = ACCELERATORS[TARGET].launch
    recorded = {row["title"]: row for row in earlier.get("programs", ())}
    rows, failed = [], {}
    for mesh, remat, over_domain in CHOICES[: options.programs]:
        dims = ParallelDims(**parse_mesh(mesh), world_size=num_devices(mesh))
        if (dims.ep, dims.tp, dims.domain) not in runs_on:
            continue
        job = job_of(case, options.accounts, mesh, remat, over_domain)
        row = recorded.get(job.title)
        if row is None:
            program = stored_account(job, options.accounts, compiles=options.compile)
            if program is None:
                continue
            if "error" in program:
                failed[job.title] = program["error"]
                continue
            parts = program["seconds"], launch * program["kernels"]
            row = {
                "compiled": program["step"],
                "compiled_parts": (*parts, program["exposed_seconds"]),
            }
        choice = MeshChoice(dims, remat, over_domain, micro_batch=job.samples)
        times = search.times(choice)
        derived = (times.launches, times.transfers)
        rows.append(
            {
                "title": job.title,
                "compiled": row["compiled"],
                "derived": times.total,
                "compiled_parts": row["compiled_parts"],
                "derived_parts": (times.total - sum(derived), *derived),
                "times": asdict(times),
            }
        )
        print(case.config, job.title, rows[-1], flush=True)
    result = {"changes": case.changes, "programs": rows, "failed": failed}
    if not rows:
        return result
    agreement = _agreement(
        [(BATCH / row["compiled"], BATCH / row["derived"]) for row in rows]
    )
    best = min(rows, key=lambda row: row["compiled"])["title"]
    first = min(rows, key=lambda row: row["derived"])["title"]
    return result | agreement | {"first": first, "best": best}


def _agreement(rates: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Agreement of compiled and derived rates: order, and rate of the first."""
    compiled, derived = np.array(rates).T
    ranks = np.argsort(np.argsort([compiled, derived]))
    correlation: Any = np.corrcoef(ranks)
    correlation = correlation[0, 1] if len(rates) > 1 else 1.0
    return {
        "correlation": float(correlation),
        "share_of_best": float(compiled[np.argmax(derived)] / compiled.max()),
    }


def choice_of(program: Mapping[str, Any]) -> MeshChoice:
    """The choice that a compiled program is of."""
    dims = ParallelDims(
        **parse_mesh(program["mesh"]), world_size=num_devices(program["mesh"])
    )
    return MeshChoice(
        dims,
        program["remat"],
        program["over_domain"],
        micro_batch=program.get("samples", 1),
    )


if __name__ == "__main__":
    sys.exit(main())
