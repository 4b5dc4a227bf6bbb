"""Names of meshes on the command lines of the benchmarks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from credit_jax.parallel.mesh.device_mesh import (
    BATCH_AXES,
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    TP,
    mesh_of_degrees,
)

_AXES = {"dp": DP_SHARD, "ddp": DP_REPLICATE, "ep": EP, "tp": TP, "domain": DOMAIN}
_FACTOR = re.compile(rf"({'|'.join(_AXES)})(\d+)")


def parse_mesh(name: str) -> dict[str, int]:
    """Degrees of the mesh axes of a name such as "dp2xtp2xdomain2"; "1" is one device.

    `dp` also splits the parameters (FSDP), `ddp` replicates them, `ep` splits samples
    and experts.

    Raises:
        ValueError: the name is not that of a mesh.
    """
    degrees: dict[str, int] = {}
    for factor in [] if name == "1" else name.split("x"):
        match = _FACTOR.fullmatch(factor)
        if not match or _AXES[match[1]] in degrees or int(match[2]) < 1:
            raise ValueError(
                f"mesh {name!r}: expected 1, or factors dpN, ddpN, epN, tpN, domainN "
                "joined by x, each at most once, such as dp2xtp2xdomain2"
            )
        degrees[_AXES[match[1]]] = int(match[2])
    return degrees


def num_devices(name: str) -> int:
    """Number of devices of a mesh."""
    return math.prod(parse_mesh(name).values())


def num_data(name: str) -> int:
    """Number of data-parallel ranks of a mesh."""
    degrees = parse_mesh(name)
    return math.prod(degrees.get(axis, 1) for axis in BATCH_AXES)


def build_mesh(name: str, devices: Sequence[Any] | None = None) -> Mesh:
    """Builds a mesh on the first devices.

    Args:
        name: see `parse_mesh`.
        devices: devices to choose from; None for those of the process.
    """
    available = jax.devices() if devices is None else devices
    return mesh_of_degrees(parse_mesh(name), available[: num_devices(name)])
