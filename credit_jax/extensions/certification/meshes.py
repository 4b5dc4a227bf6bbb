"""The meshes of a certificate, by names such as "fsdp2xtp2xdomain3"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_REPLICATE, DP_SHARD, EP, TP
from credit_jax.parallel.mesh.dims import ETP, ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_problems

ONE_DEVICE = "1"
_DEGREES: Mapping[str, str] = MappingProxyType(
    {
        "ddp": DP_REPLICATE,
        "fsdp": DP_SHARD,
        "ep": EP,
        "etp": ETP,
        "tp": TP,
        "domain": DOMAIN,
        "ulysses": ULYSSES,
    }
)
_FACTOR = re.compile(r"([a-z]+)(\d+)")
# Degrees that are no axes of a mesh: they say how others are used.
_USES = (ULYSSES, ETP)

# Devices of the largest mesh of a config that is simulated.
MAX_DEVICES = 16

# The meshes of "all", up to 8 devices. Every kind of parallelism by itself, even and
# uneven rows, then two and three kinds together.
CANDIDATES = (
    "ddp2",
    "fsdp2",
    "tp2",
    "domain2",
    "domain3",
    "fsdp4",
    "fsdp8",
    "tp4",
    "domain4",
    "domain5",
    "ddp2xfsdp2",
    "fsdp2xtp2",
    "fsdp2xdomain2",
    "tp2xdomain2",
    "tp2xdomain3",
    "domain2xulysses2",
    "domain4xulysses2",
    "ep2",
    "ep4",
    "ep2xtp2",
    "ep2xtp2xetp1",
    "ep2xdomain2",
    "fsdp2xtp2xdomain2",
    "ddp2xfsdp2xdomain2",
    "tp2xdomain4xulysses2",
    "fsdp2xdomain4",
    "domain8",
)


def dims_of(name: str) -> ParallelDims:
    """Returns the degrees of the mesh of a name; "1" is one device.

    >>> dims_of("fsdp2xdomain4").axis_degrees
    {'dp_shard': 2, 'domain': 4}
    """
    degrees: dict[str, int] = {}
    for factor in [] if name == ONE_DEVICE else name.split("x"):
        match = _FACTOR.fullmatch(factor)
        kind = _DEGREES.get(match[1]) if match else None
        if match is None or kind is None or kind in degrees or int(match[2]) < 1:
            raise ValueError(
                f"--meshes: got {name!r}; expected 1, or factors "
                f"{', '.join(f'{kind}N' for kind in _DEGREES)} joined by x, each at "
                "most once, such as fsdp2xtp2xdomain2"
            )
        degrees[kind] = int(match[2])
    world_size = 1
    for kind, degree in degrees.items():
        world_size *= 1 if kind in _USES else degree
    return ParallelDims(**degrees, world_size=world_size)


def name_of(dims: ParallelDims) -> str:
    """Returns the name of a mesh: the inverse of `dims_of`."""
    degrees = {kind: getattr(dims, degree) or 1 for kind, degree in _DEGREES.items()}
    plain = {"etp": dims.tp}
    factors = [f"{k}{n}" for k, n in degrees.items() if n != plain.get(k, 1)]
    return "x".join(factors) or ONE_DEVICE


def problems_of(name: str, model_def: ModelDef, num_devices: int) -> list[str]:
    """Returns why a model cannot run on a mesh of some devices, one line each."""
    dims = dims_of(name)
    if dims.world_size > num_devices:
        return [f"it has {dims.world_size} devices, there are {num_devices}"]
    degrees = {**dims.axis_degrees, ULYSSES: dims.ulysses_degree}
    problems = model_problems(model_def, degrees)
    return problems or model_def.validate(dims.tp)


def chosen_meshes(
    model_def: ModelDef,
    names: Sequence[str] | None,
    num_devices: int,
    *,
    num_samples: int,
    num_ranks: int | None = None,
) -> list[str]:
    """Returns the meshes to compare; all that fit, or those asked for."""
    chosen = []
    for name in CANDIDATES if names is None else names:
        ranks = dims_of(name).batch_size
        reasons = problems_of(name, model_def, num_devices)
        if not reasons and (
            num_samples % ranks if num_ranks is None else ranks != num_ranks
        ):
            reasons = [
                f"its {ranks} data-parallel ranks do not fit: expected "
                + (f"{num_ranks}" if num_ranks else f"a divisor of {num_samples}")
            ]
        if not reasons:
            chosen.append(name)
        elif names is not None:
            raise ValueError(f"--meshes: {name} does not fit: {'; '.join(reasons)}")
    return chosen


def reference_of(num_ranks: int | None) -> str:
    """Name of the mesh that others are compared with: one device if it can be."""
    return f"ddp{num_ranks}" if (num_ranks or 1) > 1 else ONE_DEVICE
