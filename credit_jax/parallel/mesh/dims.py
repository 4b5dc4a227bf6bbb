"""The degrees of all kinds of parallelism, validated before a mesh is built.

    devices = dp_replicate x dp_shard x ep x pp x tp x domain

A misconfiguration raises a single error that lists all problems, with the arithmetic
and the degrees that would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jax.sharding import Mesh

from credit_jax.config import ConfigError
from credit_jax.parallel.mesh.axes import (
    BATCH_AXES,
    DOMAIN,
    DP_AXES,
    DP_SHARD,
    ORDER,
    MeshAxes,
)
from credit_jax.parallel.mesh.degrees import ETP, REST, as_section, resolve
from credit_jax.parallel.mesh.device_mesh import (
    all_devices,
    built_degrees,
    mesh_of_degrees,
)
from credit_jax.parallel.mesh.model_fit import (
    ULYSSES,
    HasSizes,
    ModelSizes,
    model_notes,
    model_problems,
)

_SOURCE = "parallelism"


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Degrees that multiply to `world_size`; names of degrees above 1 are mesh axes.

    Attributes:
        dp_replicate: shards samples, replicates parameters.
        dp_shard: shards samples and parameters; -1 for world_size divided by the
            product of the other degrees.
        ep: shards samples and experts.
        etp: shards the units of an expert; tp or 1, None for tp.
        pp: pipeline stages; only 1 is accepted.
        tp: shards heads and feed-forward units.
        domain: shards latitude rows.
        ulysses_degree: number of neighboring domain shards that exchange heads for rows
            around attention, a divisor of domain; None moves complete windows instead.
        world_size: number of devices.
        cp: alias of domain, always equal to it.

    Raises:
        ValueError: listing all problems.

    >>> ParallelDims(dp_replicate=2, dp_shard=-1, tp=2, world_size=8).dp_shard
    2
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1
    etp: int | None = None
    pp: int = 1
    tp: int = 1
    domain: int = 1
    ulysses_degree: int | None = None
    world_size: int = 1
    cp: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        sizes = {f.name: getattr(self, f.name) for f in fields(self)}
        resolved, problems = resolve(sizes, sizes.pop("world_size"))
        if problems:
            raise ConfigError(problems, _SOURCE)
        for name, value in (resolved | {"cp": resolved[DOMAIN]}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_config(
        cls,
        config: object,
        world_size: int,
        *,
        model: ModelSizes | HasSizes | None = None,
    ) -> ParallelDims:
        """Returns the degrees of a config section.

        Args:
            config: a mapping, or an object with such attributes. Keys are the names of
                the degrees, or CREDIT's {data, tensor, domain}; `cp` is an alias of
                domain and `dp` of dp_shard. Remaining devices go to dp_replicate with
                `data: ddp` and stay idle with `data: none`; otherwise they go to
                dp_shard unless it is given. etp is tp unless it is given.
            world_size: number of devices.
            model: a model definition, or its config; its problems are listed in the
                same error (see `validate_against_model`).

        Raises:
            ValueError: listing all problems.

        >>> ParallelDims.from_config({"data": "fsdp2", "tensor": 4}, 8).dp_shard
        2
        """
        section = as_section(config)
        if section.get("data", "fsdp2") == "fsdp2" and "dp" not in section:
            section = {DP_SHARD: REST} | section
        resolved, problems = resolve(section, world_size)
        if model is not None:
            problems += model_problems(model, resolved)
        if problems:
            raise ConfigError(problems, _SOURCE)
        return cls(**resolved)

    def validate_against_model(self, model: ModelSizes | HasSizes) -> list[str]:
        """Checks the degrees against a model before it is built.

        tp must divide the heads and feed-forward units of every stage, ulysses_degree
        the heads per tp device, ep the experts. Rows and windows run on any domain
        degree.

        Args:
            model: a model definition, or its config.

        Returns:
            Notes on rows and windows that are uneven over shards, one line each.

        Raises:
            ValueError: listing all sizes that do not fit.
        """
        degrees = {name: getattr(self, name) for name in (*ORDER, ULYSSES)}
        problems = model_problems(model, degrees)
        if problems:
            raise ConfigError(problems, _SOURCE)
        return model_notes(model, self.domain, self.ulysses_degree or 1)

    def build_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Builds the mesh of the degrees above 1, outermost first as in `axes.ORDER`.

        Args:
            devices: `world_size` devices in rank order; None for the first `world_size`
                devices of all processes.

        Raises:
            ValueError: the number of devices is not `world_size`; or ulysses_degree or
                etp is given, which are no axes of a mesh and would be lost.
        """
        degrees = {ULYSSES: (self.ulysses_degree or 1, 1), ETP: (self.etp, self.tp)}
        without_axis = {name: n for name, (n, plain) in degrees.items() if n != plain}
        if without_axis:
            listed = " and ".join(
                f"{name} is {value}" for name, value in without_axis.items()
            )
            raise ValueError(
                f"{listed}, which a Mesh cannot carry; pass the ParallelDims to "
                "build_parallel_model or restore, and take the mesh of the model"
            )
        if devices is None:
            devices = all_devices()[: self.world_size]
        return mesh_of_degrees(self.axis_degrees, devices)

    @property
    def axis_degrees(self) -> dict[str, int]:
        """Axes of the mesh and their degrees; dp_shard 1 if none is above 1."""
        return built_degrees({axis: getattr(self, axis) for axis in ORDER})

    @property
    def mesh_axes(self) -> MeshAxes:
        """The axes for code inside of `shard_map`; needs no devices."""
        axes = MeshAxes.from_degrees(self.axis_degrees)
        return replace(axes, ulysses=self.ulysses_degree or 1)

    @property
    def fsdp(self) -> tuple[str, ...]:
        """Axes over which parameters are sharded and gathered."""
        return self._present(DP_SHARD)

    @property
    def dp(self) -> tuple[str, ...]:
        """Data-parallel axes: dp_replicate and dp_shard."""
        return self._present(*DP_AXES)

    @property
    def batch(self) -> tuple[str, ...]:
        """Axes over which samples are sharded."""
        return self._present(*BATCH_AXES)

    @property
    def loss(self) -> tuple[str, ...]:
        """Axes over which a loss is summed: samples and rows."""
        return self._present(*BATCH_AXES, DOMAIN)

    def _present(self, *axes: str) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis in self.axis_degrees)

    @property
    def dp_size(self) -> int:
        """Number of data-parallel replicas: dp_replicate x dp_shard."""
        return self.dp_replicate * self.dp_shard

    @property
    def batch_size(self) -> int:
        """Number of ranks with different samples: dp_replicate x dp_shard x ep."""
        return self.dp_size * self.ep

    @property
    def non_dp_size(self) -> int:
        """Number of devices of a replica: ep x pp x tp x domain."""
        return self.ep * self.pp * self.tp * self.domain

    @property
    def dp_enabled(self) -> bool:
        return self.dp_size > 1

    @property
    def fsdp_enabled(self) -> bool:
        """Whether there is a data-parallel axis, dp_shard or dp_replicate."""
        return self.dp_shard > 1 or self.dp_replicate > 1

    @property
    def hsdp_enabled(self) -> bool:
        """Whether both data-parallel axes, dp_shard and dp_replicate, exist."""
        return self.dp_shard > 1 and self.dp_replicate > 1

    @property
    def ep_enabled(self) -> bool:
        return self.ep > 1

    @property
    def pp_enabled(self) -> bool:
        return self.pp > 1

    @property
    def tp_enabled(self) -> bool:
        return self.tp > 1

    @property
    def domain_enabled(self) -> bool:
        return self.domain > 1

    @property
    def cp_enabled(self) -> bool:
        return self.domain_enabled

    def summary(self) -> str:
        """All degrees in one line."""
        names = (*ORDER, ETP)
        degrees = " ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{degrees} | dp={self.dp_size} world={self.world_size}"
