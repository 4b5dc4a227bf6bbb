"""Meshes of named axes, and their description inside of `shard_map`.

An "axis" is always a mesh axis; an array dimension is a "dim".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

# Samples are sharded, parameters are replicated (CREDIT's `data: ddp`).
DP_REPLICATE = "dp_replicate"
# Samples and parameters are sharded (CREDIT's `data: fsdp2`).
DP_SHARD = "dp_shard"
# Samples and experts are sharded.
EP = "ep"
# Pipeline stages.
PP = "pp"
# Heads and feed-forward units.
TP = "tp"
# Latitude rows of every field.
DOMAIN = "domain"

ORDER = (DP_REPLICATE, DP_SHARD, EP, PP, TP, DOMAIN)
DP_AXES = (DP_REPLICATE, DP_SHARD)
# Axes over which samples are sharded.
BATCH_AXES = (*DP_AXES, EP)


@dataclass(frozen=True)
class MeshAxes:
    """Names and degrees of the axes of a mesh, for code inside of `shard_map`.

    With `MeshAxes()` a function runs on one device without collectives.

    Attributes:
        data: axes over which samples are sharded.
        shard, expert, tensor, domain: axis over which parameters, experts, heads or
            rows are sharded; None if the mesh has no such axis. `shard` and `expert`
            are in `data`, too.
        num_data, num_shard, num_expert, num_tensor, num_domain: degrees; 1 if absent.
        ulysses: number of neighboring shards of the domain axis that exchange heads for
            rows around attention (`parallel.domain.attention`); 1 for no exchange.
    """

    data: tuple[str, ...] = ()
    shard: str | None = None
    expert: str | None = None
    tensor: str | None = None
    domain: str | None = None
    num_data: int = 1
    num_shard: int = 1
    num_expert: int = 1
    num_tensor: int = 1
    num_domain: int = 1
    ulysses: int = 1

    @classmethod
    def from_mesh(cls, mesh: Mesh) -> MeshAxes:
        """Returns the axes of `mesh`, whose axis names are among `ORDER`."""
        return cls.from_degrees(mesh.shape)

    @classmethod
    def from_degrees(cls, degrees: Mapping[str, int]) -> MeshAxes:
        """Returns the axes of a mesh with these degrees, by axis name."""
        data = tuple(name for name in BATCH_AXES if name in degrees)
        num_data = 1
        for name in data:
            num_data *= degrees[name]
        return cls(
            data=data,
            shard=DP_SHARD if DP_SHARD in degrees else None,
            expert=EP if EP in degrees else None,
            tensor=TP if TP in degrees else None,
            domain=DOMAIN if DOMAIN in degrees else None,
            num_data=num_data,
            num_shard=degrees.get(DP_SHARD, 1),
            num_expert=degrees.get(EP, 1),
            num_tensor=degrees.get(TP, 1),
            num_domain=degrees.get(DOMAIN, 1),
        )

    @property
    def num_devices(self) -> int:
        """Number of devices of the mesh, without pp."""
        return self.num_data * self.num_tensor * self.num_domain

    @property
    def summary(self) -> str:
        """The degrees in one line.

        >>> MeshAxes(num_data=4, num_expert=2, num_domain=2, ulysses=2).summary
        'dp 4 (ep 2) x tp 1 x domain 2 (ulysses 2)'
        """
        experts = f" (ep {self.num_expert})" if self.num_expert > 1 else ""
        heads = f" (ulysses {self.ulysses})" if self.ulysses > 1 else ""
        dp, domain = f"dp {self.num_data}{experts}", f"domain {self.num_domain}{heads}"
        return f"{dp} x tp {self.num_tensor} x {domain}"

    @property
    def batch(self) -> tuple[str, ...]:
        """Axes over which activations are sharded: samples and rows."""
        return self.data + ((self.domain,) if self.domain else ())


def all_devices() -> list[Any]:
    """Returns the devices of all processes, process by process."""
    return sorted(jax.devices(), key=lambda d: (d.process_index, d.id))


def built_degrees(degrees: Mapping[str, int]) -> dict[str, int]:
    """Returns the degrees of the axes that a mesh has, outermost first.

    >>> built_degrees({"domain": 2, "tp": 1, "dp_shard": 4})
    {'dp_shard': 4, 'domain': 2}
    >>> built_degrees({"tp": 1})
    {'dp_shard': 1}
    """
    built = {axis: degrees[axis] for axis in ORDER if degrees.get(axis, 1) > 1}
    return built or {DP_SHARD: 1}


def mesh_of_degrees(degrees: Mapping[str, int], devices: Sequence[Any]) -> Mesh:
    """Builds the mesh of named degrees over `devices`, row-major in `ORDER`.

    Args:
        degrees: degree of each axis by name; axes of degree 1 are omitted.
        devices: as many devices as the product of the degrees.

    Returns:
        The mesh, with Auto axes; if no degree is above 1, it has the axis dp_shard of
        size 1.

    Raises:
        ValueError: an axis is unknown, or the product is not the number of devices.
    """
    unknown = sorted(set(degrees) - set(ORDER))
    if unknown:
        raise ValueError(f"unknown mesh axes {unknown}; there are: {', '.join(ORDER)}")
    built = built_degrees(degrees)
    shape = tuple(built.values())
    if np.prod(shape) != len(devices):
        product = " x ".join(f"{axis} {degree}" for axis, degree in built.items())
        raise ValueError(
            f"{product} = {np.prod(shape)} devices, but {len(devices)} are given; "
            f"simulate them on a CPU by credit_jax.ensure_devices({np.prod(shape)}), "
            "before JAX is used, or choose other degrees"
        )
    grid = np.asarray(devices, dtype=object).reshape(shape)
    return Mesh(grid, tuple(built), axis_types=(AxisType.Auto,) * len(built))


def submesh(mesh: Mesh, axes: Sequence[str]) -> Mesh:
    """Returns the part of a mesh along `axes` with this process's first device.

    If this process owns no device of the mesh, it contains the mesh's first device.

    Args:
        mesh: a mesh.
        axes: some of its axes, in any order.

    Returns:
        A mesh of these axes only, in the order of `mesh`.
    """
    local = local_coords(mesh)
    coords = local[0] if local else (0,) * mesh.devices.ndim
    index = tuple(
        slice(None) if name in axes else coord
        for name, coord in zip(mesh.axis_names, coords, strict=True)
    )
    names = tuple(name for name in mesh.axis_names if name in axes)
    grid = mesh.devices[index]
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def has_dp_mesh(mesh: Mesh) -> bool:
    """Whether the mesh has a data-parallel axis, dp_replicate or dp_shard."""
    return any(axis in DP_AXES for axis in mesh.axis_names)


def get_dp_mesh(mesh: Mesh) -> Mesh:
    """Returns the data-parallel part of a mesh, as `submesh`.

    Returns:
        A mesh of one axis (dp_shard: parameters are sharded; dp_replicate: they are
        replicated), or of both (HSDP: sharded over dp_shard, replicated over
        dp_replicate).

    Raises:
        ValueError: the mesh has no such axis (`has_dp_mesh` is False).
    """
    if not has_dp_mesh(mesh):
        raise ValueError(
            f"the mesh {dict(mesh.shape)} has no data-parallel axis; expected "
            f"{' or '.join(DP_AXES)}; ask has_dp_mesh(mesh) first"
        )
    return submesh(mesh, DP_AXES)


def local_coords(mesh: Mesh) -> list[tuple[int, ...]]:
    """Returns the mesh coordinates of this process's devices, in rank order."""
    process = jax.process_index()
    return [
        coords
        for coords, device in np.ndenumerate(mesh.devices)
        if device.process_index == process
    ]
