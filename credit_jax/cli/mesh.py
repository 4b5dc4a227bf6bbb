"""Choose a mesh: `python -m credit_jax.mesh --config F --devices 64`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import yaml
from rich import box
from rich.table import Table

from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.options import add_config_options, read_config
from credit_jax.config.messages import divisors
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.tables import print_table
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.plan import plan_model
from credit_jax.plan.accelerators import ACCELERATORS, Accelerator
from credit_jax.plan.mesh_search import (
    BATCH,
    Cluster,
    MeshSearch,
    Program,
    Ranked,
    batch_of,
)
from credit_jax.plan.replica import ReplicaWork

HELP = (
    "Rank the meshes of some devices for a config by derived samples per second, and "
    "write the trainer section of the first; nothing is compiled or measured."
)
EXAMPLE = "--config configs/wxformer_025deg.yaml --devices 64 --device h100"
GB = 1e9
# Seconds of tracing for which a further process is started, which takes as long itself.
SECONDS = 5.0
# The arguments of `_search_of`.
_Search: TypeAlias = tuple[str, tuple[str, ...], Cluster, int | None]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.mesh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mesh`."""
    add_config_options(parser)
    add = parser.add_argument
    add("--devices", type=int, required=True, help="number of devices")
    add(
        "--device",
        choices=ACCELERATORS,
        default="h100",
        help="kind of the devices (default: h100)",
    )
    add("--nodes", type=int, help="nodes of the devices (default: 8 devices a node)")
    add("--memory", type=float, metavar="GB", help="of a device (default: its own)")
    add(
        "--batch",
        type=int,
        metavar="N",
        help="samples of an update (default: those of the config on so many devices)",
    )
    add("--all", action="store_true", help="list every choice, not one a mesh")
    add("--out", metavar="FILE", help="write the trainer section as YAML")
    add("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Prints the ranking, and the `trainer:` section of the first mesh.

    Raises:
        ValueError, OSError: an option, the config or a file is invalid.
    """
    if args.out:
        refuse_existing(Path(args.out))
        if not Path(args.out).parent.is_dir():
            raise ValueError(
                f"--out: there is no folder {Path(args.out).parent}; make it first"
            )
    cluster = _cluster(args)
    if args.batch is not None and args.batch < 1:
        raise ValueError(f"--batch: got {args.batch}; expected at least 1 sample")
    compile_sooner()
    source = args.config, tuple(args.set), cluster, args.batch
    search = _search_of(*source)
    search.trace = partial(_trace_all, search, source)
    config, batch, ranked = search.config, search.batch, search.ranked()
    section = {"trainer": ranked[0].choice.trainer(config)}
    text = yaml.safe_dump(section, sort_keys=False)
    if args.json:
        rows = [row.to_json(config) for row in ranked]
        print(json.dumps({"batch": batch, "choices": rows}, indent=1))
    else:
        shown = ranked if args.all else _one_each(ranked)
        _print(shown, batch, cluster.accelerator)
        if search.model_def.config.geometry() is None:
            print_line(
                f"note: activations of {config.model['type']} are not estimated; all "
                "else of its memory is",
                "yellow",
            )
        print(text, end="")
    if args.out:
        with new_file(Path(args.out)) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return OK


def _search_of(
    path: str, overrides: tuple[str, ...], cluster: Cluster, batch: int | None
) -> MeshSearch:
    """The search for a config, with the devices that programs are traced for."""
    config = read_config(path, list(overrides))
    model = plan_model(
        config.model,
        parse_parallelism("data=none"),
        num_devices=1,
        keep_whole=config.trainer.fsdp.keep_whole,
    )
    model.check(path)
    with contextlib.redirect_stdout(io.StringIO()):
        # None of them is used.
        ensure_devices(cluster.num_devices)
    assert model.model_def is not None, "a plan without problems has a model"
    if batch is None:
        batch = batch_of(config, cluster.num_devices)
    return MeshSearch(config, model.model_def, cluster, batch)


# Of a process that traces for another one.
_search_once = cache(_search_of)


def _traced(source: _Search, program: Program) -> ReplicaWork:
    """The work of a program, in a process that traces for another one."""
    compile_sooner()
    with warnings.catch_warnings():
        # The first process prints them.
        warnings.simplefilter("ignore", UserWarning)
        search = _search_once(*source)
    return search.traced(program)


def _trace_all(
    search: MeshSearch, source: _Search, programs: Sequence[Program]
) -> list[ReplicaWork]:
    """The work of each program, from as many processes as their time is worth."""
    began = time.perf_counter()
    first, *others = programs
    works = [search.traced(first)]
    seconds = (time.perf_counter() - began) * len(others)
    processes = min(os.cpu_count() or 1, int(seconds / SECONDS))
    if processes < 2:
        return works + [search.traced(program) for program in others]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        # Neighbors are often of one mesh, for which JAX traces some functions once.
        traced = pool.map(partial(_traced, source), others, chunksize=2)
        return works + list(traced)


def _cluster(args: argparse.Namespace) -> Cluster:
    """The devices that the options describe."""
    accelerator = ACCELERATORS[args.device]
    for name in ("devices", "nodes", "memory"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name}: got {value:g}; expected more than 0")
    nodes = args.nodes or -(-args.devices // 8)
    if args.devices % nodes:
        raise ValueError(
            f"--nodes: {nodes} nodes cannot share {args.devices} devices equally; "
            f"would fit: {divisors(args.devices)}"
        )
    memory = accelerator.memory if args.memory is None else GB * args.memory
    return Cluster(accelerator, args.devices, args.devices // nodes, memory)


def _one_each(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The first choice of each mesh."""
    first: dict[str, Ranked] = {}
    for row in ranked:
        first.setdefault(row.choice.name, row)
    return list(first.values())


def _print(ranked: Sequence[Ranked], batch: int, accelerator: Accelerator) -> None:
    table = Table(title=f"Updates of {batch} samples, derived", box=box.SIMPLE_HEAD)
    for index, name in enumerate(
        ("mesh", "remat", "FSDP", "samples", "GB", "samples/s", "loses by")
    ):
        table.add_column(name, justify="left" if index < 3 else "right")
    shown = [row for row in ranked if row.loses != BATCH]
    for row in shown:
        choice = row.choice
        ways = ("over domain", choice.over_domain), ("kept", not choice.reshard)
        table.add_row(
            choice.name,
            choice.remat,
            ", ".join(name for name, used in ways if used),
            f"{choice.micro_batch} x {choice.accumulate}" if row.rate else "",
            f"{row.memory / GB:.1f}",
            f"{row.rate:.4g}" if row.rate else "",
            row.loses,
        )
    print_table(table)
    if len(shown) < len(ranked):
        print_line(
            f"{len(ranked) - len(shown)} more have data-parallel ranks that do not "
            "share this batch; another one is --batch N"
        )
    source = "data sheets, for perfect kernels; nothing was measured"
    if accelerator.is_measured:
        source = "a step that was timed on one device; several were not measured"
    print_line(f"Derived from traced programs and {source} (docs/mesh.md).")


if __name__ == "__main__":
    sys.exit(main())
