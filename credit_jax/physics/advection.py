"""One semi-Lagrangian advection step: tracers are sampled at departure points.

Trajectories are in grid indices; the metric of the sphere is in the velocities alone.
Interpolation is trilinear: periodic in longitude, and constant beyond the first and
last row and level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import FieldContext
from credit_jax.physics.arrays import (
    EARTH_RADIUS,
    all_rows,
    clip,
    hybrid_levels,
    namespace,
    num_rows,
)
from credit_jax.physics.vertical import check_interfaces

LevelFields = Float[Any, "batch level time lat lon"]


class Wind(NamedTuple):
    """The wind that advects tracers, on levels from the top down."""

    # Eastward and northward wind, m / s.
    u: LevelFields
    v: LevelFields
    # (batch, 1, time, lat, lon) Pa.
    surface_pressure: Float[Any, "batch 1 time lat lon"]
    omega: LevelFields | None = None  # dp/dt in Pa / s; None derives it from continuity


@dataclass(frozen=True, eq=False)
class Advection:
    """An advection step of fixed length on a grid."""

    latitude: Float[np.ndarray, " lat"]  # (lat,) degrees north, of all rows
    # (lon,) degrees east, equally spaced around the globe.
    longitude: Float[np.ndarray, " lon"]
    # Coefficients (a in Pa, b) of the level + 1 interfaces, from the top down.
    half_levels: tuple[np.ndarray, np.ndarray]
    seconds: float  # length of the step
    # Fixed-point iterations for the midpoint of a trajectory, at least 1.
    iterations: int = 2
    coslat_floor: float = 1e-4  # smallest cos(latitude) in a divisor
    # Smallest pressure difference between levels in a divisor, Pa.
    dp_floor: float = 1.0

    def __call__(
        self, tracers: Sequence[LevelFields], wind: Wind, context: FieldContext | None
    ) -> list[LevelFields]:
        """Returns each tracer at the departure points of the local rows."""
        levels = wind.u.shape[1]
        check_interfaces("winds", wind.u, self.half_levels)
        # Every shard gathers the winds and the tracers of all rows, since the distance
        # that air travels in a step has no bound; it computes only its own
        # trajectories.
        full = Wind(*(x if x is None else all_rows(x, context) for x in wind))
        # Velocities in levels, rows and columns of the grid per second.
        latitude = np.deg2rad(np.asarray(self.latitude, np.float64))
        cosine = _by_row(np.maximum(np.cos(latitude), self.coslat_floor), full.u)
        # Spacing of the columns, radians.
        step = float(np.deg2rad(float(self.longitude[1]) - float(self.longitude[0])))
        columns = full.u / (EARTH_RADIUS * cosine) / full.u.dtype.type(step)
        rows = full.v / EARTH_RADIUS / _by_row(np.gradient(latitude), full.u)
        velocity = [self._level_velocity(full, latitude, step), rows, columns]
        # Level, row and column of the local grid points.
        xp, dtype = namespace(wind.u), wind.u.dtype
        num = num_rows(wind.u, context)
        # Global indices; those of padding rows are -1.
        row = xp.arange(num) if context is None else context.reducer.rows.global_rows()
        row = clip(row, 0, num - 1).astype(dtype)[:, None]
        column = xp.arange(wind.u.shape[-1]).astype(dtype)
        level = xp.arange(levels).astype(dtype).reshape(-1, 1, 1, 1)
        start = [xp.broadcast_to(x, wind.u.shape) for x in (level, row, column)]
        moved = None
        for _ in range(self.iterations):
            departures = (
                start
                if moved is None
                else [x - 0.5 * d for x, d in zip(start, moved, strict=True)]
            )
            moved = [self.seconds * v for v in sample(velocity, departures)]
        assert moved is not None, "there is an iteration"
        departures = [x - d for x, d in zip(start, moved, strict=True)]
        return sample([all_rows(x, context) for x in tracers], departures)

    def _level_velocity(
        self, wind: Wind, latitude: np.ndarray, step: float
    ) -> LevelFields:
        """Levels per second, omega / (dp per level); 0 if there is one level."""
        xp = namespace(wind.u)
        if wind.u.shape[1] == 1:
            return xp.zeros_like(wind.u)
        interfaces = hybrid_levels(self.half_levels, wind.surface_pressure)
        omega = wind.omega
        if omega is None:
            thickness = interfaces[:, 1:] - interfaces[:, :-1]
            omega = self._omega(wind, thickness, latitude, step)
        center = 0.5 * (interfaces[:, :-1] + interfaces[:, 1:])
        return omega / clip(namespace(center).gradient(center, axis=1), self.dp_floor)

    def _omega(
        self, wind: Wind, thickness: LevelFields, latitude: np.ndarray, step: float
    ) -> LevelFields:
        """Minus the integral of divergence from the top to the centers of levels."""
        xp, dtype = namespace(wind.u), wind.u.dtype
        cosine = np.cos(latitude)
        zonal = xp.roll(wind.u, -1, axis=-1) - xp.roll(wind.u, 1, axis=-1)
        zonal = zonal / dtype.type(2.0 * step)
        # The derivative by latitude, of second order on uneven rows, one-sided at the
        # ends.
        flow, rows = wind.v * _by_row(cosine, wind.v), np.diff(latitude)
        slope = (flow[:, :, :, 1:] - flow[:, :, :, :-1]) / _by_row(rows, flow)
        share = _by_row(rows[:-1] / (rows[:-1] + rows[1:]), flow)
        inner = (1 - share) * slope[:, :, :, :-1] + share * slope[:, :, :, 1:]
        ends = slope[:, :, :, :1], slope[:, :, :, -1:]
        meridional = xp.concatenate([ends[0], inner, ends[1]], axis=3)
        radius = EARTH_RADIUS * np.maximum(cosine, self.coslat_floor)
        flux = (zonal + meridional) / _by_row(radius, wind.u) * thickness
        below = xp.cumsum(flux, axis=1)
        above = xp.concatenate([xp.zeros_like(below[:, :1]), below[:, :-1]], axis=1)
        return -0.5 * (above + below)


def sample(volumes: Sequence[LevelFields], departures: Sequence[Any]) -> list[Any]:
    """Interpolates fields trilinearly at level, row and column of every point."""
    # `departures` are fractional grid indices, each (batch, level, time, rows, lon).
    xp = namespace(*volumes, *departures)
    sizes = [volumes[0].shape[axis] for axis in (1, 3, 4)]
    level, row = (
        _held(index, size)
        for index, size in zip(departures[:2], sizes[:2], strict=True)
    )
    # The two nearest columns and their weights, periodic.
    low = _floor(departures[2])
    part, first = departures[2] - low, low.astype(np.int32) % sizes[2]
    ends = [level, row, [(first, 1 - part), ((first + 1) % sizes[2], part)]]
    batch = xp.arange(volumes[0].shape[0]).reshape(-1, 1, 1, 1, 1)
    time = xp.arange(volumes[0].shape[2]).reshape(1, 1, -1, 1, 1)
    # Stacked on a last dim, all volumes take one gather per corner.
    together = xp.stack(volumes, axis=-1)
    out: Any = 0.0
    for corner in product((0, 1), repeat=3):
        (z, wz), (y, wy), (x, wx) = (ends[dim][side] for dim, side in enumerate(corner))
        out = out + (wz * wy * wx)[..., None] * together[batch, z, time, y, x]
    return [out[..., i] for i in range(len(volumes))]


def _held(index: Any, size: int) -> list[tuple[Any, Any]]:
    """The two nearest indices and their weights; constant beyond the ends."""
    xp = namespace(index)
    index = clip(index, 0.0, size - 1.0)
    low = clip(_floor(index), high=max(size - 2.0, 0.0))
    part = index - low
    first = low.astype(np.int32)
    second = xp.minimum(first + 1, size - 1)
    return [(first, 1 - part), (second, part)]


def _floor(x: Any) -> Any:
    floor = namespace(x).floor(x)
    return jax.lax.stop_gradient(floor) if isinstance(x, jax.Array) else floor


def _by_row(values: np.ndarray, like: Any) -> np.ndarray:
    """Reshapes (lat,) constants to broadcast to a field on all rows, in its dtype."""
    return values.astype(like.dtype).reshape(1, 1, 1, -1, 1)
