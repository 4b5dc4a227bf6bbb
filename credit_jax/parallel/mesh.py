"""The device mesh that `trainer.parallelism` asks for, and who gets which sample.

The block {data, tensor, domain} and the number of devices give
`dp = devices / (tensor * domain)` data-parallel replicas. Devices are laid out
row-major over (dp, tp, domain), domain innermost: device g has the coordinates

    domain = g % domain_degree
    tp     = (g // domain_degree) % tp_degree
    dp     = g // (tp_degree * domain_degree)

In the mesh, dp is the axis `dp_shard` (`data: fsdp2`) or `dp_replicate` (`data: ddp`).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from credit_jax.config.job import Config
from credit_jax.config.trainer import ParallelismConfig
from credit_jax.parallel.axes import (
    DOMAIN,
    DP_AXES,
    DP_REPLICATE,
    DP_SHARD,
    ORDER,
    TP,
)

logger = logging.getLogger(__name__)

Parallelism = Mapping[str, Any] | ParallelismConfig
_KEYS = ("data", "tensor", "domain")
_MODES = ("fsdp2", "ddp", "none")


class RankCoords(NamedTuple):
    """Where a device is in the mesh."""

    dp_rank: int
    tp: int
    domain: int


def parse_parallelism_conf(conf: Mapping[str, Any] | Config) -> dict[str, Any]:
    """The parallelism block of a trainer config, checked and complete.

    Args:
        conf: a whole config, with `trainer.parallelism` in it.

    Returns:
        A new dict with the keys data, tensor, domain.

    Raises:
        ValueError: if there is no block, a degree is no integer of at least 1, the data
            mode is unknown, or there is another key.
    """
    if isinstance(conf, Config):
        return conf.trainer.parallelism.model_dump()
    trainer = conf.get("trainer") or {}
    if "parallelism" not in trainer:
        raise ValueError(
            "Gen2 configs must define trainer.parallelism with data, tensor, and "
            "domain fields, such as {data: fsdp2, tensor: 1, domain: 1}. A config with "
            "the older trainer.mode can be migrated with CREDIT's `credit convert`."
        )
    return normalise_parallelism(trainer["parallelism"])


def normalise_parallelism(block: Parallelism) -> dict[str, Any]:
    """The block with its defaults, or the error of its first bad key."""
    if isinstance(block, ParallelismConfig):
        return block.model_dump()
    result = {"data": "none", "tensor": 1, "domain": 1, **block}
    if result["data"] not in _MODES:
        raise ValueError(
            "trainer.parallelism.data must be 'fsdp2', 'ddp', or 'none', "
            f"got {result['data']!r}"
        )
    for key in ("tensor", "domain"):
        result[key] = _degree(key, result[key])
    unknown = sorted(set(result) - set(_KEYS))
    if unknown:
        raise ValueError(
            f"Unknown trainer.parallelism key(s): {unknown} "
            "(expected data, tensor, domain)"
        )
    return result


def _degree(key: str, value: Any) -> int:
    try:
        degree = int(value)
    except (TypeError, ValueError):
        degree = 0
    if degree < 1 or (isinstance(value, float) and value != degree):
        raise ValueError(
            f"trainer.parallelism.{key} must be an integer >= 1, got {value!r}"
        )
    return degree


def dp_world_size(parallelism_conf: Parallelism, world_size: int) -> int:
    """Number of data-parallel replicas: world_size / (tensor * domain).

    Args:
        parallelism_conf: the block {data, tensor, domain}.
        world_size: number of devices.

    Returns:
        The number of replicas.

    Raises:
        ValueError: if world_size is not divisible by tensor * domain.

    >>> dp_world_size({"data": "fsdp2", "tensor": 2, "domain": 2}, 8)
    2
    """
    block = normalise_parallelism(parallelism_conf)
    non_dp = block["tensor"] * block["domain"]
    if world_size % non_dp != 0:
        fit = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise ValueError(
            f"world_size={world_size} not divisible by tensor*domain={non_dp} "
            f"(tensor {block['tensor']} x domain {block['domain']}); with {world_size} "
            f"devices tensor*domain can be {', '.join(map(str, fit))}"
        )
    return world_size // non_dp


def build_device_mesh(
    parallelism_conf: Parallelism, devices: Sequence[Any] | None = None
) -> tuple[Mesh, dict[str, Mesh]]:
    """Build the mesh of a parallelism block.

    An axis is there if its degree is above 1, outermost first dp_replicate or dp_shard,
    tp, domain. A mesh of one device has the axis dp_shard.

    Args:
        parallelism_conf: the block {data, tensor, domain}.
        devices: the devices, rank by rank; None takes all of all processes.

    Returns:
        mesh: the mesh, of Auto axes.
        submeshes: for "dp", "tp" and "domain", where the degree is above 1, the part of
            the mesh that shares all other coordinates with this process's first device.

    Raises:
        ValueError: if the number of devices is not divisible by tensor * domain.

    Differs from CREDIT: there is a mesh without parallelism, too; and `data: none` uses
    the first tensor * domain devices rather than replicas that nothing keeps equal.
    """
    block = normalise_parallelism(parallelism_conf)
    if devices is None:
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    dp_size = dp_world_size(block, len(devices))
    if block["data"] == "none" and dp_size > 1:
        used = block["tensor"] * block["domain"]
        idle = len(devices) - used
        logger.info("data: none uses %d devices; %d stay idle", used, idle)
        devices, dp_size = devices[:used], 1
    dp_axis = DP_REPLICATE if block["data"] == "ddp" else DP_SHARD
    degrees = {dp_axis: dp_size, TP: block["tensor"], DOMAIN: block["domain"]}
    mesh = mesh_of_degrees(degrees, devices)
    names = {dp_axis: "dp", TP: "tp", DOMAIN: "domain"}
    submeshes = {
        names[axis]: _submesh(mesh, axis)
        for axis in mesh.axis_names
        if mesh.shape[axis] > 1
    }
    return mesh, submeshes


def mesh_of_degrees(degrees: Mapping[str, int], devices: Sequence[Any]) -> Mesh:
    """The mesh of named degrees over `devices`, row-major in the order of `ORDER`.

    Args:
        degrees: axis name -> degree; axes of degree 1 are left out.
        devices: as many as the product of the degrees.

    Returns:
        The mesh, of Auto axes; the axis dp_shard of size 1 if no degree is above 1.

    Raises:
        ValueError: if an axis is unknown or the product is not the number of devices.
    """
    unknown = sorted(set(degrees) - set(ORDER))
    if unknown:
        raise ValueError(f"unknown mesh axes {unknown}; there are: {', '.join(ORDER)}")
    names = tuple(axis for axis in ORDER if degrees.get(axis, 1) > 1) or (DP_SHARD,)
    shape = tuple(degrees.get(axis, 1) for axis in names)
    if np.prod(shape) != len(devices):
        product = " x ".join(f"{n} {d}" for n, d in zip(names, shape, strict=True))
        raise ValueError(
            f"{product} = {np.prod(shape)} devices, but {len(devices)} are given"
        )
    grid = np.asarray(devices, dtype=object).reshape(shape)
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def _submesh(mesh: Mesh, axis: str) -> Mesh:
    """The devices along `axis` through this process's first device (or the mesh's)."""
    own = _local_coords(mesh)
    coords = own[0] if own else (0,) * mesh.devices.ndim
    index = tuple(
        slice(None) if name == axis else coord
        for name, coord in zip(mesh.axis_names, coords, strict=True)
    )
    return Mesh(mesh.devices[index], (axis,), axis_types=(AxisType.Auto,))


def rank_coords(
    parallelism_conf: Parallelism, rank: int, world_size: int
) -> RankCoords:
    """The coordinates of device `rank` of `world_size`, as the module says.

    >>> rank_coords({"data": "fsdp2", "tensor": 2, "domain": 2}, 5, 8)
    RankCoords(dp_rank=1, tp=0, domain=1)
    """
    block = normalise_parallelism(parallelism_conf)
    dp_size = dp_world_size(block, world_size)
    shape = (dp_size, block["tensor"], block["domain"])
    return RankCoords(*(int(i) for i in np.unravel_index(rank, shape)))


def data_parallel_coords(mesh: Mesh) -> tuple[int, int]:
    """The data-parallel rank of this process's first device, and the number of ranks.

    THE SAMPLER CONTRACT. Samples are sharded over the data-parallel axes only, never
    over devices. Devices that differ only in their tp or domain coordinate must hold
    the same samples:

    - tp peers compute partial sums of one activation; with different samples the `psum`
      adds up parts of different inputs, and nothing looks wrong.
    - domain peers hold different rows of one sample; with different samples every halo
      is made of the wrong weather.

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
    coords = _local_coords(mesh)
    if not coords:
        raise ValueError(
            f"process {jax.process_index()} owns none of the {mesh.size} devices of "
            f"the mesh {dict(mesh.shape)}; start fewer processes or use more devices"
        )
    return tuple(sorted({_dp_rank(mesh, coord) for coord in coords}))


def _dp_size(mesh: Mesh) -> int:
    return int(np.prod([mesh.shape.get(axis, 1) for axis in DP_AXES]))


def _dp_rank(mesh: Mesh, coords: Sequence[int]) -> int:
    """Row-major rank of a mesh coordinate over the data-parallel axes."""
    rank = 0
    for axis, coord in zip(mesh.axis_names, coords, strict=True):
        if axis in DP_AXES:
            rank = rank * mesh.shape[axis] + coord
    return rank


def _local_coords(mesh: Mesh) -> list[tuple[int, ...]]:
    """Mesh coordinates of this process's devices, in rank order."""
    process = jax.process_index()
    return [
        coords
        for coords, device in np.ndenumerate(mesh.devices)
        if device.process_index == process
    ]
