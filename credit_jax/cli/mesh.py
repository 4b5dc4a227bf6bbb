"""Choose a mesh: `python -m credit_jax.mesh --config F --devices 64`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

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
from credit_jax.plan.mesh_search import BATCH, Cluster, MeshSearch, Ranked, batch_of

HELP = (
    "Rank the meshes of some devices for a config by derived samples per second, and "
    "write the trainer section of the first; nothing is compiled or measured."
)
EXAMPLE = "--config configs/wxformer_025deg.yaml --devices 64 --device h100"
GB = 1e9


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
    config = read_config(args.config, args.set)
    model = plan_model(
        config.model,
        parse_parallelism("data=none"),
        num_devices=1,
        keep_whole=config.trainer.fsdp.keep_whole,
    )
    model.check(args.config)
    assert model.model_def is not None, "a plan without problems has a model"
    with contextlib.redirect_stdout(io.StringIO()):
        # Programs are traced for them; none is used.
        ensure_devices(cluster.num_devices)
    batch = args.batch or batch_of(config, cluster.num_devices)
    ranked = MeshSearch(config, model.model_def, cluster, batch).ranked()
    section = {"trainer": ranked[0].choice.trainer(config)}
    text = yaml.safe_dump(section, sort_keys=False)
    if args.json:
        choices = [row.to_json(config) for row in ranked]
        print(json.dumps({"batch": batch, "choices": choices}, indent=1))
    else:
        first: dict[str, Ranked] = {}
        for row in ranked:
            first.setdefault(row.choice.name, row)
        rows = ranked if args.all else [*first.values()]
        _print(rows, batch, cluster.accelerator)
        if model.model_def.config.geometry() is None:
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
