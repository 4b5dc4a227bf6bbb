"""Choose a mesh: `python -m credit_jax.mesh --config F --devices 64`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich import box
from rich.table import Table

from credit_jax.cli.commands import OK, ConfigOptions, option, print_line
from credit_jax.config.messages import divisors
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS, Accelerator
from credit_jax.extensions.mesh_choice.search import (
    BATCH,
    Cluster,
    MeshSearch,
    Ranked,
    batch_of,
)
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.plan import plan_model
from credit_jax.training.display import print_table

GB = 1e9


class ChooseMesh(ConfigOptions):
    """Rank the meshes of some devices for a config by derived samples per second.

    It writes the trainer section of the first; nothing is compiled or measured.
    """

    example = "--config configs/wxformer_025deg.yaml --devices 64 --device h100"

    devices: int = option("number of devices", gt=0)
    device: str = option("kind of the devices", "h100", choices=ACCELERATORS)
    nodes: int | None = option(
        "nodes of the devices (default: 8 devices a node)", None, gt=0
    )
    memory: float | None = option("of a device (default: its own)", None, "GB", gt=0)
    batch: int | None = option(
        "samples of an update (default: those of the config on so many devices)",
        None,
        "N",
        ge=1,
    )
    all: bool = option("list every choice, not one a mesh", False)
    out: str | None = option("write the trainer section as YAML", None, "FILE")
    as_json: bool = option("print one JSON document instead", False, alias="json")

    def run(self) -> int:
        """Prints the ranking, and the `trainer:` section of the first mesh."""
        if self.out:
            refuse_existing(Path(self.out))
            if not Path(self.out).parent.is_dir():
                raise ValueError(
                    f"--out: there is no folder {Path(self.out).parent}; make it first"
                )
        # The devices that the options describe.
        accelerator = ACCELERATORS[self.device]
        nodes = self.nodes or -(-self.devices // 8)
        if self.devices % nodes:
            raise ValueError(
                f"--nodes: {nodes} nodes cannot share {self.devices} devices equally; "
                f"would fit: {divisors(self.devices)}"
            )
        memory = accelerator.memory if self.memory is None else GB * self.memory
        cluster = Cluster(accelerator, self.devices, self.devices // nodes, memory)
        compile_sooner()
        config = self.read_config()
        model = plan_model(
            config.model,
            parse_parallelism("data=none"),
            num_devices=1,
            keep_whole=config.trainer.fsdp.keep_whole,
        )
        with contextlib.redirect_stdout(io.StringIO()):
            # Programs are traced for them; none is used.
            ensure_devices(cluster.num_devices)
        batch = self.batch or batch_of(config, cluster.num_devices)
        ranked = MeshSearch(config, model.model_def, cluster, batch).ranked()
        section = {"trainer": ranked[0].choice.trainer(config)}
        text = yaml.safe_dump(section, sort_keys=False)
        if self.as_json:
            choices = [row.to_json(config) for row in ranked]
            print(json.dumps({"batch": batch, "choices": choices}, indent=1))
        else:
            first: dict[str, Ranked] = {}
            for row in ranked:
                first.setdefault(row.choice.name, row)
            rows = ranked if self.all else [*first.values()]
            _print(rows, batch, cluster.accelerator)
            if model.model_def.config.geometry() is None:
                print_line(
                    f"note: activations of {config.model['type']} are not estimated; "
                    "all else of its memory is",
                    "yellow",
                )
            print(text, end="")
        if self.out:
            with new_file(Path(self.out)) as unfinished:
                unfinished.write_text(text, encoding="utf-8")
        return OK


main = ChooseMesh.main


def _print(ranked: Sequence[Ranked], batch: int, accelerator: Accelerator) -> None:
    table = Table(title=f"Updates of {batch} samples, derived", box=box.SIMPLE_HEAD)
    for index, name in enumerate(
        ("mesh", "remat", "FSDP", "samples", "GB", "samples/s", "loses by")
    ):
        table.add_column(name, justify="left" if index < 3 else "right")
    displayed = [row for row in ranked if row.loses != BATCH]
    for row in displayed:
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
    if len(displayed) < len(ranked):
        print_line(
            f"{len(ranked) - len(displayed)} more have data-parallel ranks that do not "
            "share this batch; another one is --batch N"
        )
    source = "data sheets, for perfect kernels; nothing was measured"
    if accelerator.achieved < 1:
        source = "a step that was timed on one device; several were not measured"
    print_line(f"Derived from traced programs and {source} (docs/mesh.md).")
