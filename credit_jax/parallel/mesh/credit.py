"""CREDIT's interface to the mesh: the section `trainer.parallelism`, and data ranks.

The section {data, tensor, domain} and the number of devices give
`dp = devices / (tensor * domain)` data-parallel replicas. Devices are laid out
row-major over (dp, tp, domain), domain innermost: device g has the coordinates

    domain = g % domain_degree
    tp     = (g // domain_degree) % tp_degree
    dp     = g // (tp_degree * domain_degree)

In the mesh, dp is the axis `dp_shard` (`data: fsdp2`) or `dp_replicate` (`data: ddp`).
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from credit_jax.config import Config, parse
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.parallel.mesh import device_mesh
from credit_jax.parallel.mesh.dims import ParallelDims

logger = logging.getLogger(__name__)

Parallelism = Mapping[str, Any] | ParallelismConfig
_KEYS = ("data", "tensor", "domain")


def parse_parallelism_conf(conf: Mapping[str, Any] | Config) -> dict[str, Any]:
    """Returns the parallelism section of a config, validated and with defaults."""
    if isinstance(conf, Config):
        return normalize_parallelism(conf.trainer.parallelism)
    trainer = conf.get("trainer") or {}
    if "parallelism" not in trainer:
        raise ValueError(
            "Gen2 configs must define trainer.parallelism with data, tensor, and "
            "domain fields, such as {data: fsdp2, tensor: 1, domain: 1}. A config with "
            "the older trainer.mode can be migrated with CREDIT's `credit convert`."
        )
    return normalize_parallelism(trainer["parallelism"])


def normalize_parallelism(section: Parallelism) -> dict[str, Any]:
    """Returns the section with its defaults; see `parse_parallelism_conf`."""
    if not isinstance(section, ParallelismConfig):
        section = parse(ParallelismConfig, section, "trainer.parallelism")
    said = section.model_dump(exclude_defaults=True, exclude={"cp"})
    return {key: getattr(section, key) for key in _KEYS} | said


def dp_world_size(parallelism_conf: Parallelism, world_size: int) -> int:
    """Returns the number of data-parallel replicas: world_size / (tensor * domain)."""
    section = normalize_parallelism(parallelism_conf)
    if section["data"] == "none":
        # The number that would fit.
        section["data"] = "fsdp2"
    return ParallelDims.from_config(section, world_size).batch_size


def build_device_mesh(
    parallelism_conf: Parallelism, devices: Sequence[Any] | None = None
) -> tuple[Mesh, dict[str, Mesh]]:
    """Builds the mesh of a parallelism section.

    Its axes are those with a degree above 1, outermost first: dp_replicate, dp_shard,
    ep, pp, tp, domain. A mesh of one device has the axis dp_shard.

    Args:
        parallelism_conf: the section {data, tensor, domain}, and further keys.
        devices: the devices in rank order; None for those of all processes.

    Returns:
        mesh: the mesh, with Auto axes.
        submeshes: for those of "dp", "tp" and "domain" with a degree above 1, the part
            of the mesh that shares all other coordinates with this process's first
            device; "dp" has two axes under HSDP.

    Raises:
        ValueError: as for `dp_world_size`.

    Differs from CREDIT: a mesh is returned without parallelism, too; and `data: none`
    uses the first tensor * domain devices, not replicas that drift apart.

    >>> section = {"data": "none", "tensor": 1, "domain": 1}
    >>> credit_jax.build_device_mesh(section, jax.devices()[:1])[0].axis_names
    ('dp_shard',)
    """
    section = normalize_parallelism(parallelism_conf)
    devices = device_mesh.all_devices() if devices is None else devices
    dims = ParallelDims.from_config(section, len(devices))
    used, idle = dims.world_size, len(devices) - dims.world_size
    if idle:
        logger.info("data: none uses %d devices; %d stay idle", used, idle)
    mesh = dims.build_mesh(devices[:used])
    groups = {
        "dp": dims.dp if dims.dp_enabled else (),
        "tp": (device_mesh.TP,) if dims.tp_enabled else (),
        "domain": (device_mesh.DOMAIN,) if dims.domain_enabled else (),
    }
    return mesh, {
        name: device_mesh.submesh(mesh, axes) for name, axes in groups.items() if axes
    }


def data_parallel_coords(mesh: Mesh) -> tuple[int, int]:
    """Returns the data rank of this process's first device, and the number of ranks."""
    # THE SAMPLER CONTRACT. Loaders are built with `local_dp_ranks(mesh)` and this size,
    # never with indices of devices or processes: devices that differ only in their tp
    # or domain coordinate must have the same samples. With others, tp peers would add
    # terms of different inputs in their `psum`, and domain peers get halo rows of
    # another sample, without any error.
    size = math.prod(mesh.shape.get(axis, 1) for axis in device_mesh.BATCH_AXES)
    return local_dp_ranks(mesh)[0], size


def local_dp_ranks(mesh: Mesh) -> tuple[int, ...]:
    """Returns the data-parallel ranks whose devices this process owns, ascending."""
    coords = device_mesh.local_coords(mesh)
    if not coords:
        raise ValueError(
            f"process {jax.process_index()} owns none of the {mesh.size} devices of "
            f"the mesh {dict(mesh.shape)}; start fewer processes or use more devices"
        )
    # A process loads the samples of exactly these ranks, each once.
    return tuple(sorted({_dp_rank(mesh, coord) for coord in coords}))


def writing_dp_ranks(mesh: Mesh) -> tuple[int, ...]:
    """Returns the dp ranks that this process, the first of their owners, writes."""
    owners: dict[int, set[int]] = {}
    for coords, device in np.ndenumerate(mesh.devices):
        owners.setdefault(_dp_rank(mesh, coords), set()).add(device.process_index)
    this_process = jax.process_index()
    return tuple(
        sorted(r for r, processes in owners.items() if min(processes) == this_process)
    )


def shares_samples(mesh: Mesh) -> bool:
    """Whether the devices of one data-parallel rank belong to several processes."""
    owners: dict[int, int] = {}
    return any(
        owners.setdefault(_dp_rank(mesh, coords), device.process_index)
        != device.process_index
        for coords, device in np.ndenumerate(mesh.devices)
    )


def _dp_rank(mesh: Mesh, coords: Sequence[int]) -> int:
    """Returns the row-major rank of mesh coordinates over the axes of samples."""
    rank = 0
    for axis, coord in zip(mesh.axis_names, coords, strict=True):
        if axis in device_mesh.BATCH_AXES:
            rank = rank * mesh.shape[axis] + coord
    return rank
