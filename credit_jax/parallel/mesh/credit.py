"""CREDIT's interface to the mesh: the section `trainer.parallelism`, and its ranks.

The section {data, tensor, domain} and the number of devices give
`dp = devices / (tensor * domain)` data-parallel replicas. Devices are laid out
row-major over (dp, tp, domain), domain innermost: device g has the coordinates

    domain = g % domain_degree
    tp     = (g // domain_degree) % tp_degree
    dp     = g // (tp_degree * domain_degree)

In the mesh, dp is the axis `dp_shard` (`data: fsdp2`) or `dp_replicate` (`data: ddp`).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from credit_jax.config.base import parse
from credit_jax.config.config import Config
from credit_jax.config.parallelism import DATA_MODES, ParallelismConfig
from credit_jax.parallel.mesh.axes import BATCH_AXES, DOMAIN, TP
from credit_jax.parallel.mesh.degrees import whole_number
from credit_jax.parallel.mesh.device_mesh import all_devices, local_coords, submesh
from credit_jax.parallel.mesh.dims import ParallelDims

logger = logging.getLogger(__name__)

Parallelism = Mapping[str, Any] | ParallelismConfig
_KEYS = ("data", "tensor", "domain")
_FURTHER = tuple(key for key in ParallelismConfig.model_fields if key not in _KEYS)


def parse_parallelism_conf(conf: Mapping[str, Any] | Config) -> dict[str, Any]:
    """The parallelism section of a trainer config, checked and complete.

    Args:
        conf: a whole config, with `trainer.parallelism` in it.

    Returns:
        A new dict with the keys data, tensor, domain, and those of the further keys of
        `ParallelismConfig` that differ from their default (`cp` is in domain).

    Raises:
        ValueError: if there is no section, a degree is no integer of at least 1, the
            data mode is unknown, keys do not agree, or there is another key.
    """
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
    """The section with its defaults, or the error of its first bad key."""
    if not isinstance(section, ParallelismConfig):
        section = _parse_section(section)
    said = section.model_dump(exclude_defaults=True, exclude={"cp"})
    return {key: getattr(section, key) for key in _KEYS} | said


def _parse_section(section: Mapping[str, Any]) -> ParallelismConfig:
    """A section of CREDIT's, with the errors that CREDIT raises for its keys."""
    data = section.get("data", "none")
    if data not in DATA_MODES:
        raise ValueError(
            f"trainer.parallelism.data must be 'fsdp2', 'ddp', or 'none', got {data!r}"
        )
    degrees = {key: section[key] for key in ("tensor", "domain") if key in section}
    for key, value in degrees.items():
        degree = whole_number(value)
        if degree is None or degree < 1:
            raise ValueError(
                f"trainer.parallelism.{key} must be an integer >= 1, got {value!r}"
            )
        degrees[key] = degree
    unknown = sorted(set(section) - {*_KEYS, *_FURTHER})
    if unknown:
        raise ValueError(
            f"Unknown trainer.parallelism key(s): {unknown} "
            f"(expected data, tensor, domain, or further {', '.join(_FURTHER)})"
        )
    return parse(ParallelismConfig, {**section, **degrees}, "trainer.parallelism")


def dp_world_size(parallelism_conf: Parallelism, world_size: int) -> int:
    """Number of data-parallel replicas: world_size / (tensor * domain).

    Args:
        parallelism_conf: the section {data, tensor, domain}, and further keys.
        world_size: number of devices.

    Returns:
        The number of replicas; with `data: none` those that would fit.

    Raises:
        ValueError: if world_size is not divisible by tensor * domain (and pp), or
            is not the product of the degrees where all are given.

    >>> dp_world_size({"data": "fsdp2", "tensor": 2, "domain": 2}, 8)
    2
    """
    section = normalize_parallelism(parallelism_conf)
    if section["data"] == "none":
        section["data"] = "fsdp2"
    return ParallelDims.from_config(section, world_size).batch_size


def build_device_mesh(
    parallelism_conf: Parallelism, devices: Sequence[Any] | None = None
) -> tuple[Mesh, dict[str, Mesh]]:
    """Build the mesh of a parallelism section.

    An axis is there if its degree is above 1, outermost first dp_replicate, dp_shard,
    (ep, pp), tp, domain. A mesh of one device has the axis dp_shard.

    Args:
        parallelism_conf: the section {data, tensor, domain}, and further keys.
        devices: the devices, rank by rank; None takes all of all processes.

    Returns:
        mesh: the mesh, of Auto axes.
        submeshes: for "dp", "tp" and "domain", where the degree is above 1, the part of
            the mesh that shares all other coordinates with this process's first device;
            "dp" has two axes under HSDP.

    Raises:
        ValueError: as `dp_world_size`.

    Differs from CREDIT: there is a mesh without parallelism, too; and `data: none` uses
    the first tensor * domain devices rather than replicas that drift apart.
    """
    section = normalize_parallelism(parallelism_conf)
    devices = all_devices() if devices is None else devices
    dims = ParallelDims.from_config(section, len(devices))
    used, idle = dims.world_size, len(devices) - dims.world_size
    if idle:
        logger.info("data: none uses %d devices; %d stay idle", used, idle)
    mesh = dims.build_mesh(devices[:used])
    groups = {
        "dp": dims.dp if dims.dp_enabled else (),
        "tp": (TP,) if dims.tp_enabled else (),
        "domain": (DOMAIN,) if dims.domain_enabled else (),
    }
    return mesh, {name: submesh(mesh, axes) for name, axes in groups.items() if axes}


def data_parallel_coords(mesh: Mesh) -> tuple[int, int]:
    """The data-parallel rank of this process's first device, and the number of ranks.

    THE SAMPLER CONTRACT. Samples are sharded over the data-parallel axes only, never
    over devices. Devices that differ only in their tp or domain coordinate must hold
    the same samples:

    - tp peers compute partial sums of one activation; with different samples the `psum`
      adds up parts of different inputs, without any error.
    - domain peers hold different rows of one sample; with different samples halo
      rows come from another sample.

    So a loader is built with `local_dp_ranks(mesh)` and `dp_size` from here, and never
    with device or process numbers.

    Args:
        mesh: a mesh of `build_device_mesh`.

    Returns:
        (dp_rank, dp_size).

    Raises:
        ValueError: if this process owns no device of the mesh.
    """
    return local_dp_ranks(mesh)[0], _dp_size(mesh)


def local_dp_ranks(mesh: Mesh) -> tuple[int, ...]:
    """The data-parallel ranks whose devices this process owns, in rising order.

    A process loads the samples of exactly these ranks, each once, whatever the number
    of its devices; see `data_parallel_coords`.

    Raises:
        ValueError: if this process owns no device of the mesh.
    """
    coords = local_coords(mesh)
    if not coords:
        raise ValueError(
            f"process {jax.process_index()} owns none of the {mesh.size} devices of "
            f"the mesh {dict(mesh.shape)}; start fewer processes or use more devices"
        )
    return tuple(sorted({_dp_rank(mesh, coord) for coord in coords}))


def writing_dp_ranks(mesh: Mesh) -> tuple[int, ...]:
    """The data-parallel ranks whose samples this process writes, in rising order.

    Of the processes that own devices of a rank it is the first.
    """
    owners: dict[int, set[int]] = {}
    for coords, device in np.ndenumerate(mesh.devices):
        owners.setdefault(_dp_rank(mesh, coords), set()).add(device.process_index)
    own = jax.process_index()
    return tuple(sorted(r for r, found in owners.items() if min(found) == own))


def shares_samples(mesh: Mesh) -> bool:
    """Whether the devices of one data-parallel rank belong to several processes."""
    owners: dict[int, int] = {}
    return any(
        owners.setdefault(_dp_rank(mesh, coords), device.process_index)
        != device.process_index
        for coords, device in np.ndenumerate(mesh.devices)
    )


def _dp_size(mesh: Mesh) -> int:
    return int(np.prod([mesh.shape.get(axis, 1) for axis in BATCH_AXES]))


def _dp_rank(mesh: Mesh, coords: Sequence[int]) -> int:
    """Row-major rank of a mesh coordinate over the axes of samples."""
    rank = 0
    for axis, coord in zip(mesh.axis_names, coords, strict=True):
        if axis in BATCH_AXES:
            rank = rank * mesh.shape[axis] + coord
    return rank
