"""The mesh of a run that goes on with other devices than it began with.

A launcher starts a run again on the machines that are left. Its batches stay those of
its start: their samples are shared by the ranks that there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from credit_jax.config import Config, ConfigError
from credit_jax.config.messages import counted
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan.run import plan_model


def mesh_of_restart(
    config: Config, devices: Sequence[Any], ranks: int
) -> tuple[ParallelismConfig, list[Any], list[str]]:
    """Chooses degrees for the devices left; returns them, those used, notes."""
    trainer, section = config.trainer, config.trainer.parallelism
    sizes = {each.trainer.train_batch_size * ranks for each in (config, *config.stages)}
    sizes |= set() if trainer.skip_validation else {trainer.valid_batch_size * ranks}
    shares = any(each.shares_batches for each in (config, *config.stages))
    of_process: dict[int, list[Any]] = {}
    for device in devices:
        of_process.setdefault(device.process_index, []).append(device)
    most = min(map(len, of_process.values()))
    worlds = [len(of_process) * count for count in range(most, 0, -1)]
    with suppress(ConfigError):
        dims = ParallelDims.from_config(section, len(devices))
        # As at the start: the plan of the run is that of its mesh, too.
        if (dims.batch_size, dims.world_size) == (ranks, len(devices)):
            return section, [*devices], []
    # What no number of devices would mend.
    plan_model(config.model, section, num_devices=required_devices(section))
    num, listed = len(of_process), " and ".join(map(str, sorted(sizes)))
    total = counted(len(devices), "device")
    start = f"dp {ranks} x tensor {section.tensor} x domain {section.domain}"
    # Tensor and domain stay where they fit, else they are the nearest that the model
    # allows. Every process has equally many devices of the mesh.
    for dp, tensor, domain in _degrees(section, worlds):
        if any(size % dp for size in sizes) or (shares and dp != ranks):
            continue
        changes: dict[str, Any] = {"tensor": tensor, "domain": domain}
        if dp != ranks:
            copies = section.dp_replicate
            keeps = section.data == "fsdp2" and copies is not None and dp % copies == 0
            changes["dp_replicate"] = copies if keeps else None
            changes["dp_shard"] = -1 if section.data == "fsdp2" else None
        chosen, world = section.model_copy(update=changes), dp * tensor * domain
        try:
            model = plan_model(
                config.model,
                chosen,
                num_devices=world,
                keep_whole=trainer.fsdp.keep_whole,
                finetune=trainer.finetune,
            )
        except ConfigError:
            continue
        if model.dims.world_size < world:  # data: none
            continue
        used = [d for each in of_process.values() for d in each[: world // num]]
        if (dp, tensor, domain) == (ranks, section.tensor, section.domain):
            return chosen, used, []  # of more devices than it is meant for
        return (
            chosen,
            used,
            [
                f"{model.axes.summary} on {world} of {total}, where the run is "
                f"meant for {start}; its batches stay {listed} samples"
            ],
        )
    raise ConfigError(
        [
            f"trainer.parallelism: no mesh of {total} ({num} processes) fits the model "
            f"and shares batches of {listed} samples evenly; expected {start} devices, "
            "as the run is meant for, or a part of them; start it on such a number, "
            "or set trainer.train_batch_size, which begins other batches"
        ]
    )


def _degrees(
    section: ParallelismConfig, worlds: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Degrees dp, tensor, domain, those of the section first, then the nearest ones."""
    degrees = [
        (world // (tensor * domain), tensor, domain)
        for world in worlds
        for tensor in range(1, world + 1)
        if world % tensor == 0
        for domain in range(1, world // tensor + 1)
        if world // tensor % domain == 0
    ]

    def distance(each: tuple[int, int, int]) -> tuple[bool, float]:
        ratios = each[1] / section.tensor, each[2] / section.domain
        idle = worlds[0] / math.prod(each)
        far = sum(abs(math.log2(ratio)) for ratio in ratios)
        return far > 0, far + math.log2(idle)

    return iter(sorted(degrees, key=distance))
