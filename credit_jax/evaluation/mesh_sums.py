"""Area sums of forecasts on a mesh, by one compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.evaluation.measures import AreaSums, PointWeights, area_sums
from credit_jax.evaluation.regions import Region, band_weights, region_weights
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import local_dp_ranks
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.placement import batch_spec, place_batch

# Key -> (batch, level, 1, rows, lon), as returned by `ForecastStep`.
Forecast = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class ScoreGrid:
    """The grid of fields in degrees, (lat,) and (lon,) or both (lat, lon)."""

    latitude: np.ndarray
    longitude: np.ndarray
    regions: tuple[Region, ...]
    # Of spectra; none on curvilinear grids.
    bands: tuple[Region, ...] = ()


@dataclass(frozen=True, eq=False)
class MeshSums:
    """Computes the area sums of the `size` forecasts of a batch on the full mesh."""

    mesh: Mesh
    grid: ScoreGrid
    size: int
    # Adjacent in a batch. If those of each start date are on one data-parallel rank,
    # each rank processes its own start dates; otherwise all are all-gathered, and every
    # rank computes the same.
    num_members: int
    # Key -> positions of the levels that are compared, None for all.
    channels: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size % self.num_members:
            raise ValueError(
                f"scores of {self.num_members} members need them side by side, and "
                f"{self.size} forecasts run at once; choose --batch so that batch x "
                f"{self.axes.num_data} data-parallel devices is a multiple of "
                f"{self.num_members}"
            )

    @property
    def axes(self) -> MeshAxes:
        return MeshAxes.from_mesh(self.mesh)

    @property
    def num_starts(self) -> int:
        return self.size // self.num_members

    @property
    def gathers(self) -> bool:
        """Whether members of one start date are on several data-parallel ranks."""
        return self.size // self.axes.num_data % self.num_members != 0

    def place(self, references: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """Puts reference fields (start, channel, lat, lon) on the mesh, by name."""
        fields = {name: x[:, :, None] for name, x in references.items()}
        if self.gathers:
            return place_batch(fields, self.mesh, shared=True)
        ranks, num = local_dp_ranks(self.mesh), self.axes.num_data
        local = {
            name: np.concatenate([np.split(x, num)[rank] for rank in ranks])
            for name, x in fields.items()
        }
        return place_batch(local, self.mesh, local_dp_ranks=ranks)

    def __call__(
        self, forecast: Forecast, references: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Area sums at one lead time, as arrays on the devices for `to_host`."""
        return self._compiled(dict(forecast), dict(references), self._weights)

    def to_host(self, sums: Mapping[str, Array]) -> dict[str, np.ndarray]:
        """(start, channel, ...) area sums of the start dates, in every process."""
        return {name: np.asarray(x)[: self.num_starts] for name, x in sums.items()}

    def place_forecast(
        self, members: Float[np.ndarray, "batch channel lat lon"]
    ) -> dict[str, Array]:
        """Puts a host forecast on the mesh, as one key with all channels."""
        return place_batch({"all": members[:, :, None]}, self.mesh)

    @cached_property
    def _weights(self) -> tuple[Array, Array | None]:
        grid, axes = self.grid, self.axes
        padding = -len(grid.latitude) % axes.num_domain

        def place(weights: np.ndarray) -> Array:
            pads = [(0, 0), (0, padding), (0, 0)][: weights.ndim]
            spec = PartitionSpec(None, axes.domain)
            sharding = NamedSharding(self.mesh, spec)
            return jax.device_put(np.pad(weights, pads), sharding)

        regions = region_weights(grid.regions, grid.latitude, grid.longitude)
        bands = band_weights(grid.bands, grid.latitude) if grid.bands else None
        return place(regions), None if bands is None else place(bands)

    @cached_property
    def _compiled(self) -> Any:
        axes, field = self.axes, batch_spec(self.axes)
        run = jax.shard_map(
            self._local,
            mesh=self.mesh,
            in_specs=(field, field, PartitionSpec(None, axes.domain)),
            out_specs=PartitionSpec(axes.data or None),
        )
        replicated = NamedSharding(self.mesh, PartitionSpec())

        def sums(*arrays: Any) -> dict[str, Array]:
            return lax.with_sharding_constraint(run(*arrays), replicated)

        return compile_program(sums, self.mesh)

    def _local(
        self,
        forecast: Forecast,
        references: Mapping[str, Array],
        weights: tuple[Array, Array | None],
    ) -> AreaSums:
        # The compared levels of each variable, (batch, level, rows, lon).
        channels: Mapping[str, Sequence[int] | None] = self.channels
        channels = channels or dict.fromkeys(forecast)
        fields = {key: forecast[key][:, :, 0] for key in channels}
        chosen = {k: x for k, x in channels.items() if x is not None}
        fields |= {key: fields[key][:, jnp.asarray(x)] for key, x in chosen.items()}
        members = jnp.concatenate([*fields.values()], axis=1)
        if self.gathers:
            members = lax.all_gather(members, self.axes.data, axis=0, tiled=True)
        members = members.reshape(-1, self.num_members, *members.shape[1:])
        truths = {name: x[:, :, 0] for name, x in references.items()}
        return area_sums(members, truths, PointWeights(*weights), self.axes)
