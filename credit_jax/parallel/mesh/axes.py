"""Mesh axis names, outermost first, and the description of a mesh inside `shard_map`.

An "axis" is always a mesh axis; an array dimension is a "dim".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jax.sharding import Mesh

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
            rows around attention (`parallel.domain.heads`); 1 for no exchange.
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
