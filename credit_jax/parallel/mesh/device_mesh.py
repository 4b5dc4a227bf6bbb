"""Meshes of named axes, built from degrees, and their parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from credit_jax.parallel.mesh.axes import DP_AXES, DP_SHARD, ORDER


def all_devices() -> list[Any]:
    """The devices of all processes, process by process."""
    return sorted(jax.devices(), key=lambda d: (d.process_index, d.id))


def built_degrees(degrees: Mapping[str, int]) -> dict[str, int]:
    """The axes that a mesh of these degrees has, outermost first.

    >>> built_degrees({"domain": 2, "tp": 1, "dp_shard": 4})
    {'dp_shard': 4, 'domain': 2}
    >>> built_degrees({"tp": 1})
    {'dp_shard': 1}
    """
    built = {axis: degrees[axis] for axis in ORDER if degrees.get(axis, 1) > 1}
    return built or {DP_SHARD: 1}


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
    """The devices along `axes` through this process's first device (or the mesh's).

    Args:
        mesh: a mesh.
        axes: some of its axes; they keep the order that they have in `mesh`.

    Returns:
        A mesh of these axes only.
    """
    own = local_coords(mesh)
    coords = own[0] if own else (0,) * mesh.devices.ndim
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
    """The data-parallel part of a mesh, through this process's first device.

    Returns:
        A mesh of one axis (dp_shard: parameters are split; dp_replicate: they are not)
        or of both (HSDP: split over dp_shard, whole copies over dp_replicate).

    Raises:
        ValueError: if there is no such axis, as in a purely tensor-parallel mesh; ask
            `has_dp_mesh` first.
    """
    if not has_dp_mesh(mesh):
        raise ValueError(
            f"the mesh {dict(mesh.shape)} has no data-parallel axis; expected "
            f"{' or '.join(DP_AXES)}; ask has_dp_mesh(mesh) first"
        )
    return submesh(mesh, DP_AXES)


def local_coords(mesh: Mesh) -> list[tuple[int, ...]]:
    """Mesh coordinates of this process's devices, in rank order."""
    process = jax.process_index()
    return [
        coords
        for coords, device in np.ndenumerate(mesh.devices)
        if device.process_index == process
    ]
