"""Bytes that a training step moves between devices, and the least it must move.

    python -m benchmarks.scale.comm_volume [--meshes ddp8 tp8 dp8xdomain8 ...]

Read from the compiled program of each mesh on simulated devices; nothing is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compiled_step import MODELS, compile_step, model_block
from benchmarks.meshes import build_mesh, num_devices
from benchmarks.report import Table, add_out_option, publish
from benchmarks.scale.hlo import KINDS, Collective, collectives
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.compiler import NORM, PARAMETERS
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, TP, MeshAxes
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.params.fsdp import ShardingRules, split_axes
from credit_jax.parallel.rows.exchange import HALO

DEFAULT_MESHES = (
    "ddp8",
    "ddp64",
    "dp8",
    "dp64",
    "tp8",
    "domain8",
    "dp8xdomain8",
    "dp8xtp8",
    "dp4xtp2xdomain8",
    "ddp2xdp4xtp2xdomain4",
)
FLOAT = 4  # bytes

FSDP, TENSOR, EXCHANGE, SUMS = "FSDP", "tensor", "long attention", "sums"
PURPOSES = (FSDP, TENSOR, HALO, EXCHANGE, SUMS)

Volume = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> Path:
    """Compiles every mesh, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    ensure_devices(max(map(num_devices, options.meshes)))
    model = model_block(options.model)
    runs = []
    for mesh in options.meshes:
        degrees = dict(build_mesh(mesh).shape)
        axes = MeshAxes.from_degrees(degrees)
        batch = options.samples * axes.num_data
        model_def, compiled = compile_step(model, mesh, batch=batch)
        transfers = collectives(compiled.as_text())
        runs.append(
            {
                "mesh": mesh,
                "kinds": _by_kind(transfers),
                "sent": by_purpose(transfers, degrees),
                "least": least_volume(model_def, axes, options.samples),
            }
        )
    title = "MB sent by one device in a step"
    kinds = Table(title, ["mesh", *KINDS], [_kind_cells(run) for run in runs])
    purposes = Table(
        title, ["mesh", *PURPOSES, "all"], [_purpose_cells(run) for run in runs]
    )
    return publish(
        "comm_volume",
        ["# Communication volume", _KINDS, kinds, _PURPOSES, purposes],
        {"runs": runs},
        config={"meshes": options.meshes, "samples": options.samples, "model": model},
        folder=options.out,
    )


_KINDS = (
    "MB that one device sends in a training step, by kind of collective, and in "
    "brackets how many there are. Each data-parallel rank has its own samples, so that "
    "a row shows the cost of weak scaling along dp."
)
_PURPOSES = (
    "The same by what it is for, and in brackets how many times the least that the "
    "algorithm must move. FSDP: two gathers of every split parameter and one scatter "
    "of its gradient. Tensor: one sum over tp of every attention and feed-forward "
    "block, forward and backward. Halo: the reach of the convolutions, forward and "
    "backward. Long attention: to its windows and back, forward and backward. Sums "
    "over dp and domain: gradients; norms, the loss and the optimizer's norm count as "
    "nothing there.\n\n"
    "XLA on a CPU merges the two gathers of FSDP outside of loops (it drops the "
    "barrier between them), which makes a ratio below 1 there; a GPU runs both."
)


def _by_kind(collectives: Sequence[Collective]) -> dict[str, dict[str, float]]:
    sent = {kind: {"bytes": 0.0, "number": 0} for kind in KINDS}
    for collective in collectives:
        sent[collective.kind]["bytes"] += collective.sent
        sent[collective.kind]["number"] += collective.times
    return sent


def by_purpose(collectives: Sequence[Collective], mesh: Mapping[str, int]) -> Volume:
    """Bytes that one device sends, by `purpose`."""
    sent = dict.fromkeys(PURPOSES, 0.0)
    for collective in collectives:
        sent[purpose(collective, mesh)] += collective.sent
    return sent


def purpose(collective: Collective, mesh: Mapping[str, int]) -> str:
    """The purpose of a collective of a training step, one of `PURPOSES`.

    Args:
        collective: collective of the compiled step.
        mesh: degree of every axis, outermost first.

    Raises:
        ValueError: no part of a training step has such a collective.
    """
    axes = collective.axes(mesh)
    if collective.kind == "all-reduce":
        return TENSOR if axes == (TP,) else SUMS
    if collective.kind in ("all-gather", "reduce-scatter"):
        if axes == (DP_SHARD,):
            return FSDP
        # XLA merges gathers of parameters with others; parameters are the larger part.
        if axes == (DOMAIN,) and PARAMETERS in collective.name:
            return FSDP
        if axes == (DOMAIN,) and f"/{NORM}/" in collective.name:
            return SUMS
    if collective.kind in ("collective-permute", "all-to-all") and axes == (DOMAIN,):
        return HALO if HALO in collective.name else EXCHANGE
    raise ValueError(f"a {collective.kind} over {axes}: {collective.name}")


def least_volume(
    model_def: ModelDef, axes: MeshAxes, samples: int, *, over_domain: bool = False
) -> Volume:
    """Bytes that one device must send in a step, by `purpose`.

    Args:
        model_def: a WXFormer.
        axes: axes of the mesh.
        samples: samples of one data-parallel rank.
        over_domain: whether parameters are stored sharded over domain, too; the gathers
            and scatters over domain are left out.
    """
    rules = ShardingRules(over_domain=over_domain)
    volume = dict.fromkeys(PURPOSES, 0.0)
    for param_spec in model_def.param_specs.values():
        spec = rules.spec(param_spec, axes)
        names = [axis for entry in spec for axis in split_axes(entry)]
        # Bytes and number of copies of what is gathered over dp_shard.
        size, copies = param_spec.size * FLOAT, axes.num_data * axes.num_domain
        if TP in names:
            size /= axes.num_tensor
        if DOMAIN in names:
            size /= axes.num_domain
            copies //= axes.num_domain
        if DP_SHARD in names:
            volume[FSDP] += 3 * _share(axes.num_shard) * size
            size /= axes.num_shard
            copies //= axes.num_shard
        volume[SUMS] += 2 * _share(copies) * size
    volume[TENSOR] = _tensor_sums(model_def, samples, axes)
    volume[HALO] = _halos(model_def, samples, axes.num_domain)
    volume[EXCHANGE] = _exchanges(model_def, samples, axes.num_domain)
    return volume


def _share(num: int) -> float:
    return (num - 1) / num


def _tensor_sums(model_def: ModelDef, samples: int, axes: MeshAxes) -> float:
    """Four sums per block, forward and backward, of its whole local field."""
    config = model_def.config
    fields = sum(
        depth * stage.height * stage.width * stage.channels
        for depth, stage in zip(config.depth, config.geometry().stages, strict=True)
    )
    rings = 2 * _share(axes.num_tensor)
    return 4 * 2 * rings * samples * fields / axes.num_domain * FLOAT


def _halos(model_def: ModelDef, samples: int, domain: int) -> float:
    """Halo rows of every convolution, forward and backward.

    The first has no backward, as no gradient of the data is computed.
    """
    if domain == 1:
        return 0.0
    config, geometry = model_def.config, model_def.config.geometry()
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


def _exchanges(model_def: ModelDef, samples: int, domain: int) -> float:
    """Exchanges to the windows of long attention and back, forward and backward."""
    config = model_def.config
    fields = sum(
        depth * stage.height * stage.width * stage.channels
        for depth, stage in zip(config.depth, config.geometry().stages, strict=True)
        if stage.global_window > 1
    )
    return 2 * 2 * _share(domain) * samples * fields / domain * FLOAT


def _kind_cells(run: Mapping[str, Any]) -> list[str]:
    kinds = (run["kinds"][kind] for kind in KINDS)
    return [run["mesh"], *(f"{k['bytes'] / 1e6:.3f} ({k['number']})" for k in kinds)]


def _purpose_cells(run: Mapping[str, Any]) -> list[str]:
    sent, least = run["sent"], run["least"]
    cells = [_ratio(sent[name], least[name]) for name in PURPOSES]
    return [run["mesh"], *cells, _ratio(sum(sent.values()), sum(least.values()))]


def _ratio(sent: float, least: float) -> str:
    if not least:
        return f"{sent / 1e6:.3f}" if sent else ""
    return f"{sent / 1e6:.3f} ({sent / least:.2f})"


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.comm_volume")
    add = parser.add_argument
    add("--meshes", nargs="+", default=list(DEFAULT_MESHES), metavar="MESH")
    add("--model", choices=MODELS, default="medium")
    add("--samples", type=int, default=1, help="of one data-parallel rank")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
