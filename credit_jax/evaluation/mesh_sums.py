"""Area sums of errors, anomalies, ranks and spectra of forecasts, on a mesh.

`area_sums` is a function of local rows, inside or outside of `shard_map`; `MeshSums`
is one compiled program for the batches of a run. With weights `w` of the
points of a region, an ensemble of m members `x_i`, `e` the error of their mean, `t` the
truth, `c` the climatology, and sums over points where all of them have values:

    squared, absolute, plain    sum w e^2, sum w |e|, sum w e
    anomaly, product, truth     sum w f^2, sum w f a, sum w a^2, f = x - c, a = t - c
    crps                        sum w (mean |x_i - t| - mean |x_i - x_j| / 2), i != j
    variance                    sum w sum_i (x_i - mean)^2 / (m - 1)
    rank                        sum w for each number of members below the truth
    power                       sum w |F_k|^2, twice that if -k and k differ

Differences from the truth are taken first, as they are exact in float32.
"""

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
from jaxtyping import Array, Bool, Float

from credit_jax.evaluation import scores
from credit_jax.evaluation.regions import Region, band_weights, region_weights
from credit_jax.evaluation.scores import CLIMATOLOGY, FORECAST, TRUTH
from credit_jax.losses.named import half_pair_sum
from credit_jax.ops.custom_vjp import pvary
from credit_jax.parallel.collectives import psum_each
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import local_dp_ranks
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.placement import batch_spec, place_batch

ScoredFields = Float[Array, "start channel rows lon"]
Ensemble = Float[Array, "start member channel rows lon"]
# "system/quantity" -> (start, channel, region, ...); quantities as above, and
# "weight" (of errors), "anomaly_weight", "power_weight": sums of w alone.
AreaSums = dict[str, Array]
_BLOCK = 32


@dataclass(frozen=True)
class PointWeights:
    """Weights of local points of regions, and of rows of bands; 0 in padding rows."""

    # The sum of each over all shards is 1; without bands there are no spectra.
    regions: Float[Array, "region rows lon"]
    bands: Float[Array, "band rows"] | None

    def sum(self, values: ScoredFields) -> Float[Array, "start channel region"]:
        """Sums over local points of each region."""
        parts = _blocks(values, -1), _blocks(self.regions, -1)
        of_blocks = jnp.einsum("scynx,rynx->scryn", *parts, precision="highest")
        return _blocks(of_blocks.sum(axis=-1), -1).sum(axis=-1).sum(axis=-1)

    def band_sum(self, values: Float[Array, "start channel rows wave"]) -> Array:
        """Sums over local rows of each band, (start, channel, band, wave)."""
        assert self.bands is not None, "asked by the caller"
        parts = _blocks(values, -2), _blocks(self.bands, -1)
        of_blocks = jnp.einsum("scnyk,bny->scbnk", *parts, precision="highest")
        return of_blocks.sum(axis=-2)


def area_sums(
    forecast: Ensemble,
    references: Mapping[str, ScoredFields],
    weights: PointWeights,
    axes: MeshAxes,
) -> AreaSums:
    """The area sums of forecasts at one lead time, over the rows of all shards."""
    truth, climatology = references[TRUTH], references.get(CLIMATOLOGY)
    systems = {FORECAST: forecast}
    for name in (scores.PERSISTENCE, CLIMATOLOGY):
        if name in references:
            systems[name] = references[name][:, None]
    sums: AreaSums = {}
    for name, fields in systems.items():
        baseline = None if name == CLIMATOLOGY else climatology
        sums |= _system(name, fields, truth, baseline, weights)
    if climatology is not None:
        anomaly = truth - climatology
        finite = jnp.isfinite(anomaly)
        sums[f"{TRUTH}/anomaly"] = weights.sum(_zero(jnp.square(anomaly), finite))
        sums[f"{TRUTH}/anomaly_weight"] = weights.sum(finite.astype(jnp.float32))
    if weights.bands is not None:
        systems = {FORECAST: forecast, TRUTH: truth[:, None], **systems}
        for name, fields in systems.items():
            power, rows_finite = _power(fields)
            full = rows_finite.all(axis=1)
            of_name = _band_sums(name, _power(fields.mean(axis=1))[0], full, weights)
            if fields.shape[1] > 1:
                of_name |= _band_sums(scores.MEMBERS, power.mean(axis=1), full, weights)
            sums |= of_name
    rows = (axes.domain,) if axes.domain else ()
    parts = [pvary(part, rows) for part in sums.values()]
    return dict(zip(sums, psum_each(parts, [rows] * len(parts)), strict=True))


def _system(
    name: str,
    fields: Ensemble,
    truth: ScoredFields,
    climatology: ScoredFields | None,
    weights: PointWeights,
) -> AreaSums:
    """Errors and anomalies of a system, and ensemble measures if it has members."""
    difference = fields - truth[:, None]
    finite = jnp.isfinite(difference).all(axis=1)
    difference = _zero(difference, finite[:, None])
    several, count = fields.shape[1] > 1, fields.shape[1]
    quantities = _errors(name, difference.mean(axis=1, keepdims=True))
    quantities[f"{name}/weight"] = finite.astype(jnp.float32)
    if several:
        quantities |= _errors(scores.MEMBERS, difference)
        quantities[f"{scores.MEMBERS}/weight"] = quantities[f"{name}/weight"]
        # CRPS and variance, computed from differences from the truth.
        pairs = half_pair_sum(difference[:, :, :, None])[:, :, 0]
        mean = jnp.abs(difference).mean(axis=1)
        quantities[f"{name}/crps"] = mean - pairs / (count * (count - 1))
        centered = difference - difference.mean(axis=1, keepdims=True)
        squares = jnp.square(centered).sum(axis=1)
        quantities[f"{name}/variance"] = squares / (count - 1)
    sums = {key: weights.sum(_zero(x, finite)) for key, x in quantities.items()}
    if several:
        # Sums of weights by rank; ties with n members share it over n + 1 ranks.
        below = (difference < 0).sum(axis=1)
        equal = (difference == 0).sum(axis=1)
        share = _zero(1 / (equal + 1), finite)

        def at(rank: Array) -> Array:
            here = (rank >= below) & (rank <= below + equal)
            return weights.sum(_zero(share, here))

        sums[f"{name}/rank"] = jnp.moveaxis(
            jax.lax.map(at, jnp.arange(difference.shape[1] + 1)), 0, -1
        )
    if climatology is not None:
        both = finite & jnp.isfinite(climatology)
        anomaly = _zero(fields - climatology[:, None], both[:, None])
        of_truth = truth - climatology
        anomalies = _anomalies(name, anomaly.mean(axis=1, keepdims=True), of_truth)
        if several:
            anomalies |= _anomalies(scores.MEMBERS, anomaly, of_truth)
        for key, values in anomalies.items():
            sums[key] = weights.sum(_zero(values, both))
    return sums


def _errors(name: str, error: Ensemble) -> dict[str, ScoredFields]:
    return {
        f"{name}/squared": jnp.square(error).mean(axis=1),
        f"{name}/absolute": jnp.abs(error).mean(axis=1),
        f"{name}/plain": error.mean(axis=1),
    }


def _anomalies(
    name: str, anomaly: Ensemble, of_truth: ScoredFields
) -> dict[str, ScoredFields]:
    return {
        f"{name}/anomaly": jnp.square(anomaly).mean(axis=1),
        f"{name}/product": anomaly.mean(axis=1) * of_truth,
        f"{name}/truth": jnp.square(of_truth),
        f"{name}/anomaly_weight": jnp.ones_like(of_truth),
    }


def _band_sums(
    name: str, power: Array, finite: Array, weights: PointWeights
) -> AreaSums:
    rows = finite[..., None]
    return {
        f"{name}/power": weights.band_sum(_zero(power, rows)),
        f"{name}/power_weight": weights.band_sum(rows.astype(jnp.float32))[..., 0],
    }


def _power(
    fields: Float[Array, "*dims rows lon"],
) -> tuple[Float[Array, "*dims rows wave"], Bool[Array, "*dims rows"]]:
    """Power by zonal wavenumber; the sum over these is the mean square of a row."""
    finite = jnp.isfinite(fields).all(axis=-1)
    fields = _zero(fields, finite[..., None])
    # Subtracted first, as it may be a thousand times the variation.
    mean = fields.mean(axis=-1, keepdims=True)
    waves = jnp.fft.rfft(fields - mean) / fields.shape[-1]
    power = jnp.square(waves.real) + jnp.square(waves.imag)
    # The shortest wave of an even number of points is its own conjugate.
    single = slice(1, -1 if fields.shape[-1] % 2 == 0 else None)
    power = power.at[..., single].multiply(2)
    return power.at[..., 0].set(jnp.square(mean[..., 0])), finite


def _blocks(values: Array, dim: int) -> Array:
    """Splits a dim into blocks of `_BLOCK`, padded with zeros at the end."""
    # Blockwise summation reduces rounding errors, which grow with the length of a sum.
    dim %= values.ndim
    size = values.shape[dim]
    pads = [(0, -size % _BLOCK if i == dim else 0) for i in range(values.ndim)]
    shape = *values.shape[:dim], -1, _BLOCK, *values.shape[dim + 1 :]
    return jnp.pad(values, pads).reshape(shape)


def _zero(values: Array, origin: Array) -> Array:
    return jnp.where(origin, values, jnp.zeros((), values.dtype))


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
