"""Meshes of named axes, and their description inside of `shard_map`.

An "axis" is always a mesh axis; an array dimension is a "dim".
"""

from __future__ import annotations

import math
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
    """Names and degrees of mesh axes inside of `shard_map`; by default one device."""

    data: tuple[str, ...] = ()  # shards samples; contains `shard` and `expert`
    shard: str | None = None  # shards parameters; None if the mesh has no such axis
    expert: str | None = None  # shards experts
    tensor: str | None = None  # shards heads and feed-forward units
    domain: str | None = None  # shards rows
    num_data: int = 1
    num_shard: int = 1
    num_expert: int = 1
    num_tensor: int = 1
    num_domain: int = 1
    # Neighboring domain shards that exchange heads for rows around attention.
    ulysses: int = 1

    @classmethod
    def from_mesh(cls, mesh: Mesh) -> MeshAxes:
        """Returns the axes of `mesh`, whose axis names are among `ORDER`."""
        return cls.from_degrees(mesh.shape)

    @classmethod
    def from_degrees(cls, degrees: Mapping[str, int]) -> MeshAxes:
        """Returns the axes of a mesh with these degrees, by axis name."""
        data = tuple(name for name in BATCH_AXES if name in degrees)
        kinds = {"shard": DP_SHARD, "expert": EP, "tensor": TP, "domain": DOMAIN}
        names: dict[str, Any] = {k: a for k, a in kinds.items() if a in degrees}
        numbers: dict[str, Any] = {f"num_{k}": degrees[a] for k, a in names.items()}
        num_data = math.prod(degrees[axis] for axis in data)
        return cls(data, num_data=num_data, **names, **numbers)

    @property
    def num_devices(self) -> int:
        """Number of devices of the mesh, without pp."""
        return self.num_data * self.num_tensor * self.num_domain

    @property
    def summary(self) -> str:
        """The degrees, such as 'dp 4 (ep 2) x tp 1 x domain 2 (ulysses 2)'."""
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
    """Returns the degrees above 1, outermost first; dp_shard of 1 if there are none."""
    built = {axis: degrees[axis] for axis in ORDER if degrees.get(axis, 1) > 1}
    return built or {DP_SHARD: 1}


def mesh_of_degrees(degrees: Mapping[str, int], devices: Sequence[Any]) -> Mesh:
    """Builds the mesh of named degrees over `devices`, row-major in `ORDER`."""
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
    """Returns the part of a mesh along `axes` with this process's first device."""
    local = local_coords(mesh)
    # Without a device of this process, the part with the first device.
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
    """Returns the data-parallel part: dp_shard, dp_replicate, or both (HSDP)."""
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
