"""Bytes that a training step moves between devices, beside the least it must move.

    python -m benchmarks.comm_volume [--meshes ddp8 dp8 tp2 domain4 ...]

Read from the compiled program of each mesh on simulated devices; nothing is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compiled_step import SMALL_MODEL, compile_step
from benchmarks.hlo import KINDS, collectives
from benchmarks.jax_side import num_devices, parse_mesh
from benchmarks.recipe import REPORTS, markdown_table, recipe, write_report
from credit_jax.models.architecture import Architecture
from credit_jax.parallel.axes import DOMAIN, DP_REPLICATE, DP_SHARD, TP
from credit_jax.parallel.devices import ensure_devices

DEFAULT_MESHES = ("ddp4", "dp4", "tp2", "domain4", "dp2xtp2xdomain2")
BATCH = 8
FLOAT = 4  # bytes


def main(arguments: Sequence[str] | None = None) -> Path:
    """Compiles every mesh, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    ensure_devices(max(map(num_devices, options.meshes)))
    runs = []
    for mesh in options.meshes:
        architecture, compiled = compile_step(SMALL_MODEL, mesh, batch=options.batch)
        runs.append(_volume(mesh, compiled.as_text(), architecture, options.batch))
    header = ["mesh", *KINDS, "all", "least", "ratio"]
    rows = [_cells(run) for run in runs]
    _print(header, rows)
    config = {"meshes": options.meshes, "batch": options.batch, "model": SMALL_MODEL}
    sections = ["# Communication volume", _INTRO, markdown_table(header, rows)]
    data = {"recipe": recipe(config), "runs": runs}
    return write_report("comm_volume", sections, data, options.out)


_INTRO = (
    "MB that one device sends in a training step, by kind of collective. Least is what "
    "the algorithm cannot do without: gradients and FSDP gathers, one sum over tp for "
    "every attention and feed-forward block, halos of the convolutions, and two "
    "exchanges for every long attention, forward and backward. Moving rows between "
    "layouts, norms, losses and the optimiser's norm count as nothing there. FSDP "
    "gathers for the forward and again for the backward pass; XLA on CPU merges the "
    "two outside of loops, which makes a ratio below 1."
)


def _volume(
    mesh: str, hlo: str, architecture: Architecture, batch: int
) -> dict[str, Any]:
    sent = dict.fromkeys(KINDS, 0.0)
    number = dict.fromkeys(KINDS, 0)
    for collective in collectives(hlo):
        sent[collective.kind] += collective.sent
        number[collective.kind] += collective.times
    least = least_volume(architecture, parse_mesh(mesh), batch)
    return {"mesh": mesh, "sent": sent, "number": number, "least": least}


def least_volume(
    architecture: Architecture, degrees: Mapping[str, int], batch: int
) -> dict[str, float]:
    """Bytes that one device must send in a step, by what they are for.

    Args:
        architecture: a WXFormer.
        degrees: of the mesh axes.
        batch: samples of the global batch.
    """
    tensor, domain = degrees.get(TP, 1), degrees.get(DOMAIN, 1)
    shard, replicas = degrees.get(DP_SHARD, 1), degrees.get(DP_REPLICATE, 1)
    samples = batch // (shard * replicas)
    split = [d for d in architecture.declarations.values() if _on_tp(d)]
    size = (architecture.num_parameters - sum(d.size for d in split)) * FLOAT
    size += sum(d.size for d in split) * FLOAT / tensor
    copies = domain * replicas
    return {
        "gather": 2 * _share(shard) * size,
        "gradients": _share(shard) * size + 2 * _share(copies) * size / shard,
        "tensor": _tensor_sums(architecture, samples, tensor, domain),
        "halo": _halos(architecture, samples, domain),
        "long attention": _exchanges(architecture, samples, domain),
    }


def _share(num: int) -> float:
    return (num - 1) / num


def _on_tp(declaration: Any) -> bool:
    return any(name in ("heads", "mlp") for name in declaration.dims)


def _tensor_sums(
    architecture: Architecture, samples: int, tensor: int, domain: int
) -> float:
    """Four sums a block, forward and backward, of its whole local field."""
    config = architecture.config
    fields = sum(
        depth * stage.height * stage.width * stage.channels
        for depth, stage in zip(config.depth, config.geometry().stages, strict=True)
    )
    return 2 * 4 * 2 * _share(tensor) * samples * fields / domain * FLOAT


def _halos(architecture: Architecture, samples: int, domain: int) -> float:
    """Rows beyond a shard's own of every convolution, forward and backward.

    The first has no backward: nobody asks for the gradient of the data.
    """
    if domain == 1:
        return 0.0
    config, geometry = architecture.config, architecture.config.geometry()
    width, channels = geometry.patched[1], config.input_channels * config.frames
    points = 0.0
    for index, stage in enumerate(geometry.stages):
        kernel = max(config.cross_embed_kernel_sizes[index])
        halo = kernel - config.cross_embed_strides[index]
        points += halo * width * channels * (0.5 if index == 0 else 1.0)
        width, channels = stage.width, stage.channels
    for index in range(3):
        narrow = config.dim[3] // 2 ** (index + 1)
        points += 2 * width * channels + 3 * 2 * (2 * width) * narrow
        width, channels = 2 * width, narrow + config.dim[2 - index]
    outputs = config.output_channels * config.output_frames
    points += 2 * width * channels + 2 * (2 * width) * outputs
    return 2 * samples * points * FLOAT


def _exchanges(architecture: Architecture, samples: int, domain: int) -> float:
    """To the windows of long attention and back, forward and backward."""
    config = architecture.config
    fields = sum(
        depth * stage.height * stage.width * stage.channels
        for depth, stage in zip(config.depth, config.geometry().stages, strict=True)
        if stage.global_window > 1
    )
    return 2 * 2 * _share(domain) * samples * fields / domain * FLOAT


def _cells(run: Mapping[str, Any]) -> list[str]:
    kinds = [f"{run['sent'][kind] / 1e6:.3f} ({run['number'][kind]})" for kind in KINDS]
    total, least = sum(run["sent"].values()), sum(run["least"].values())
    ratio = f"{total / least:.2f}" if least else ""
    return [run["mesh"], *kinds, f"{total / 1e6:.3f}", f"{least / 1e6:.3f}", ratio]


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title="MB sent by one device in a step (number of collectives)")
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comm_volume")
    add = parser.add_argument
    add("--meshes", nargs="+", default=list(DEFAULT_MESHES), metavar="MESH")
    add("--batch", type=int, default=BATCH, help="samples of a global batch")
    add("--out", type=Path, default=REPORTS, help="folder of the report")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
