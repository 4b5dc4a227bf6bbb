"""Meshes of named axes, built from degrees, and submeshes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from credit_jax.parallel.mesh.axes import DP_AXES, DP_SHARD, ORDER


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
            f"{product} = {np.prod(shape)} devices, but {len(devices)} are given"
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
