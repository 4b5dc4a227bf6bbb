"""`spectral_to_grid`: coefficients of spherical harmonics, as IFS has them, to fields.

With T for the truncation, an array (..., (T + 1) (T + 2)) has, for each order from 0 to
T, real and imaginary parts of the degrees from the order to T. The coefficient of order
and degree 0 is the mean of the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import lru_cache
from os.path import expandvars
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, PrivateAttr

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.config.components import FilePath
from credit_jax.io.open_files import opened
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.physics.harmonics import legendre_functions, neighbor_ratio
from credit_jax.transforms.base import (
    Descriptions,
    Effects,
    FieldTree,
    Grid,
    InputBlock,
    Reach,
    StepContext,
    TreeSchema,
    Where,
    preblock,
)


class VectorKeys(StrictModel):
    """Keys of vorticity and divergence, and of the wind that is made of them.

    Attributes:
        vorticity, divergence: keys of the coefficients, 1 / s.
        u, v: keys of the wind, m / s.
    """

    vorticity: str
    divergence: str
    u: str
    v: str


@preblock("spectral_to_grid")
class SpectralToGrid(InputBlock):
    """Makes fields of coefficients of spherical harmonics, and winds of vorticity.

    Variables that are not there are skipped.

    Attributes:
        scalar_vars: key of coefficients -> key of the field; a list keeps the keys.
        vector_vars: vorticity and divergence, keys of coefficients in 1 / s, and u and
            v, those of the wind in m / s.
        exp_vars: keys of fields of which the exponential is taken, such as that of the
            logarithm of surface pressure.
        truncation: largest degree of the harmonics.
        target_grid: "reduced_gaussian" are the points of `grid_file`, ring by ring, as
            variables on that grid have them; "equiangular" are latitudes from 90 to -90
            and longitudes from 0, with the winds of the rows next to the poles there.
        grid_file: file or store with the latitudes and longitudes of the points, or
            with ring_lats and ring_nlon of the rings, from north to south. The weights
            of a `regrid` after it are those of `reduced_grid_weights`.
        nlat, nlon: number of latitudes and longitudes of "equiangular".
        radius: radius of the sphere, m.

    Vorticity and divergence are no variables afterwards, unless `scalar_vars` has them.
    """

    where: ClassVar = Where.HOST
    reach: ClassVar = Reach.GRID

    scalar_vars: dict[str, str] | tuple[str, ...] = ()
    vector_vars: tuple[VectorKeys, ...] = ()
    exp_vars: tuple[str, ...] = ()
    truncation: PositiveInt = 639
    target_grid: Literal["reduced_gaussian", "equiangular"] = "reduced_gaussian"
    grid_file: FilePath | None = None
    nlat: PositiveInt = 721
    nlon: PositiveInt = 1440
    radius: PositiveFloat = 6371229.0

    unavailable: ClassVar = {
        "delete_inputs": Unavailable(
            "coefficients cannot be channels beside fields; scalar_vars makes fields "
            "of them",
            harmless=(True,),
        )
    }

    # Latitude and number of points of each ring, from north to south.
    _latitude: np.ndarray = PrivateAttr(default_factory=lambda: np.zeros(0))
    _counts: np.ndarray = PrivateAttr(default_factory=lambda: np.zeros(0, int))

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        outputs = [*self._scalars.values()]
        outputs += [key for each in self.vector_vars for key in (each.u, each.v)]
        if not outputs:
            yield "names no variable: give scalar_vars or vector_vars"
        for key in sorted({key for key in outputs if outputs.count(key) > 1}):
            yield f"two variables would be called {key}; name one of them otherwise"
        for key in self.exp_vars:
            if key not in outputs:
                yield f"exp_vars: got {key}, expected one of {', '.join(outputs)}"
        if self.target_grid == "reduced_gaussian" and self.grid_file is None:
            yield "grid_file: missing; it has the points of reduced_gaussian"

    def open(self) -> None:
        if self.target_grid == "equiangular":
            self._latitude = np.linspace(90.0, -90.0, self.nlat)
            self._counts = np.full(self.nlat, self.nlon)
        else:
            self._latitude, self._counts = _rings(expandvars(self.grid_file or ""))

    @property
    def effects(self) -> Effects:
        shape, longitude = (1, int(self._counts.sum())), None
        if self.target_grid == "equiangular":
            shape = self.nlat, self.nlon
            longitude = np.arange(self.nlon) * (360 / self.nlon)
        latitude = None if longitude is None else self._latitude
        renames = {
            old: new
            for new, old in self._pairs([*self._scalars, *self._winds])
            if new != old and self._scalars.get(old) in (None, new)
        }
        moves = *self._scalars, *self._winds
        return Effects(renames, moves, Grid(shape, latitude, longitude))

    def check(self, schema: TreeSchema) -> None:
        """Checks that vorticity and divergence are there together, on equal levels."""
        for part in filter(schema.__contains__, self.data_types):
            levels = {group.var_key: group.n_levels for group in schema[part]}
            for each in self.vector_vars:
                _check_pair(each, part, levels)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """The variables with their new keys."""
        new_schema = dict(schema)
        for part in filter(schema.__contains__, self.data_types):
            groups = {group.var_key: group for group in schema[part]}
            pairs = {new: groups[old] for new, old in self._pairs(groups)}
            by_name = by_source(
                {k: dataclasses.replace(g, var_key=k) for k, g in pairs.items()}
            )
            new_schema[part] = [*by_key(by_name).values()]
        return new_schema

    def describe(self, units: Descriptions) -> Descriptions:
        """Attributes of the winds, and of scalars with another key."""
        attributes = {
            new: units[old]
            for old, new in self._scalars.items()
            if old in units and new not in self.exp_vars
        }
        for each in self.vector_vars:
            for key, name in ((each.u, "eastward_wind"), (each.v, "northward_wind")):
                attributes[key] = {"standard_name": name, "units": "m s**-1"}
        return attributes

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Makes fields (batch, level, time, *space) of coefficients."""
        new = dict(tree)
        for part in self.entries(tree):
            fields = by_key(tree[part])
            results = {}
            sizes = {key: x.shape for key, x in fields.items()}
            for each in self.vector_vars:
                if _check_pair(each, part, sizes):
                    pair = each.vorticity, each.divergence
                    orders = [self._by_order(key, fields[key]) for key in pair]
                    wind = self._wind(*orders, lead=fields[pair[0]].shape[:-1])
                    results |= dict(zip((each.u, each.v), wind, strict=True))
            for old, name in self._scalars.items():
                if old in fields:
                    parts = self._by_order(old, fields[old])
                    results[name] = self._points(parts, fields[old].shape[:-1])
            for key in self.exp_vars:
                if key in results:
                    results[key] = np.exp(results[key])
            keys = [new for new, _ in self._pairs(fields)]
            merged = fields | results
            new[part] = by_source({key: merged[key] for key in keys})
        return new

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Gives fields the keys, and logarithms, of coefficients, on the new grid."""
        new, old_keys = dict(tree), {k: v for v, k in self.effects.renames.items()}
        for part in self.entries(tree):
            new[part] = by_source(
                {
                    old_keys.get(key, key): np.log(x) if key in self.exp_vars else x
                    for key, x in by_key(tree[part]).items()
                }
            )
        return new

    @property
    def _scalars(self) -> dict[str, str]:
        """Key of coefficients -> key of the field."""
        scalars = self.scalar_vars
        return scalars if isinstance(scalars, dict) else {key: key for key in scalars}

    @property
    def _winds(self) -> dict[str, str]:
        """Key of vorticity or divergence -> key of the wind in its position."""
        pairs = [((w.vorticity, w.u), (w.divergence, w.v)) for w in self.vector_vars]
        return {old: new for pair in pairs for old, new in pair}

    def _pairs(self, keys: Iterable[str]) -> list[tuple[str, str]]:
        """Pairs (new, old) of keys; winds come last where their input is a scalar."""
        pairs, last = list[tuple[str, str]](), list[tuple[str, str]]()
        for key in keys:
            wind, scalar = self._winds.get(key), self._scalars.get(key)
            pairs.append((scalar or wind or key, key))
            if wind and scalar:
                last.append((wind, key))
        return pairs + last

    def _by_order(self, key: str, x: np.ndarray) -> list[np.ndarray]:
        """Coefficients of each order (field, 2, degree), degrees from the order on."""
        degrees = np.arange(self.truncation + 1, 0, -1)
        if x.shape[-1] != 2 * degrees.sum():
            raise ValueError(
                f"{key} has {x.shape[-1]} values, expected the {2 * degrees.sum()} of "
                f"coefficients up to degree {self.truncation}; set truncation to that "
                "of the files, or leave out variables that are no coefficients"
            )
        packed = np.asarray(x, np.float32).reshape(-1, degrees.sum(), 2)
        return np.split(packed.swapaxes(1, 2), degrees.cumsum()[:-1], axis=-1)

    def _wind(
        self, *orders: list[np.ndarray], lead: tuple[int, ...]
    ) -> list[np.ndarray]:
        """The wind (*lead, *space) of coefficients of its vorticity and divergence."""
        # Of psi and chi, which are a^2 / n / (n + 1) vorticity and divergence but for
        # the sign, with slopes cos(lat) dP/dlat of the functions P:
        #   u = (d chi / d lon - cos(lat) d psi / d lat) / (a cos(lat)),
        #   v = (d psi / d lon + cos(lat) d chi / d lat) / (a cos(lat)).
        ratio = neighbor_ratio(self.truncation + 2)
        east, north = list[np.ndarray](), list[np.ndarray]()
        for m, pair in enumerate(zip(*orders, strict=True)):
            n = np.arange(m, self.truncation + 1)
            inverse = -self.radius / np.maximum(n * (n + 1), 1) * (n > 0)
            by_lon, by_lat = [], []
            for x in (inverse * part for part in pair):
                # The functions have one degree more.
                wide = np.pad(x, ((0, 0), (0, 0), (0, 1)))
                by_lon.append(m * np.stack([-wide[:, 1], wide[:, 0]], 1))
                slope = np.zeros_like(wide)
                slope[..., 1:] = -n * ratio[m + 1 :, m] * x
                slope[..., :-2] += ((n + 1) * ratio[m:-1, m] * x)[..., 1:]
                by_lat.append(slope)
            east.append(by_lon[1] - by_lat[0])
            north.append(by_lon[0] + by_lat[1])
        cosine = np.maximum(np.cos(np.deg2rad(self._latitude)), 1e-8)
        winds = [self._points(parts, lead, cosine) for parts in (east, north)]
        if self.target_grid == "equiangular":
            for wind in winds:
                wind[..., 0, :], wind[..., -1, :] = wind[..., 1, :], wind[..., -2, :]
        return winds

    def _points(
        self, parts: list[np.ndarray], lead: tuple[int, ...], divisor: Any = 1.0
    ) -> np.ndarray:
        """The fields (*lead, *space) of coefficients, divided by a number a ring."""
        # Sums over degrees, then over orders along rings of equal size.
        functions = _functions(self.truncation, tuple(self._latitude))
        waves = np.empty((len(parts[0]), *self._counts.shape, len(parts)), np.complex64)
        for m, (x, table) in enumerate(zip(parts, functions, strict=True)):
            sums = x.astype(np.float32) @ table[: x.shape[-1]] / np.float32(divisor)
            waves[..., m] = sums[:, 0] + 1j * sums[:, 1]
        points = np.empty((len(waves), self._counts.sum()), np.float32)
        starts = self._counts.cumsum() - self._counts
        for count in np.unique(self._counts):
            rings = np.flatnonzero(self._counts == count)
            values = np.fft.irfft(waves[:, rings], n=count, norm="forward")
            points[:, starts[rings, None] + np.arange(count)] = values
        space = () if self.target_grid == "reduced_gaussian" else (self.nlat, self.nlon)
        return points.reshape(*lead, *(space or points.shape[-1:]))


def reduced_grid_weights(
    grid_file: str,
    latitude: Float[np.ndarray, " lat"],
    longitude: Float[np.ndarray, " lon"],
) -> xr.Dataset:
    """Returns weights of `regrid` from a reduced Gaussian grid to rows and columns.

    They are linear in longitude along the two rings next to a row, and linear in
    latitude between them; poleward of the outer rings those alone count. They are those
    of `reduced_gaussian_to_latlon_bilinear_weights` of CREDIT's branch `era5_model_2`.

    Args:
        grid_file: see `SpectralToGrid`.
        latitude: latitudes of the rows, in degrees, in any order.
        longitude: longitudes of the columns, in degrees, in any order.

    Returns:
        The content of a `weight_file`, in the layout of ESMF: `to_netcdf` writes it.

    Raises:
        ValueError: if the file has no such grid.

    >>> grid = "gs://gcp-public-data-arco-era5/co/model-level-moisture.zarr-v2"
    >>> rows, columns = 90 - 0.25 * np.arange(721), 0.25 * np.arange(1440)
    >>> weights = reduced_grid_weights(grid, rows, columns)  # doctest: +SKIP
    >>> weights.to_netcdf("n320_to_0p25.nc")  # doctest: +SKIP
    """
    rings, counts = _rings(expandvars(grid_file))
    starts = counts.cumsum() - counts
    rows = np.clip(np.asarray(latitude, float), rings[-1], rings[0])
    ring = np.searchsorted(-rings, -rows, "right") - 1
    ring = np.clip(ring, 0, len(rings) - 2)
    south = (rings[ring] - rows) / (rings[ring] - rings[ring + 1])
    columns, values = [], []
    for number, part in ((ring, 1 - south), (ring + 1, south)):
        count = counts[number, None]
        position = np.asarray(longitude, float) % 360 * count / 360
        west = np.floor(position).astype(int)
        for column, share in ((west, west + 1 - position), (west + 1, position - west)):
            columns.append(starts[number, None] + column % count)
            values.append(part[:, None] * share)
    points = np.meshgrid(latitude, longitude, indexing="ij")
    row = np.broadcast_to(np.arange(points[0].size) + 1, (4, points[0].size)).ravel()
    column, value = np.ravel(columns) + 1, np.ravel(values)
    (used,) = np.nonzero(value)  # a weight of 0 would spread NaN
    fields = {
        **{k: ("n_s", x[used]) for k, x in (("row", row), ("col", column))},
        "S": ("n_s", value[used]),
        "yc_a": ("n_a", np.repeat(rings, counts)),
        "yc_b": ("n_b", points[0].ravel()),
        "xc_b": ("n_b", points[1].ravel()),
        "dst_grid_dims": ("dst_grid_rank", [len(longitude), len(latitude)]),
    }
    return xr.Dataset(fields)


@lru_cache(maxsize=2)
def _functions(
    truncation: int, latitude: tuple[float, ...]
) -> list[Float[np.ndarray, "degree ring"]]:
    """Functions of each order, one degree more than the truncation, as IFS has them."""
    # Their squares are 1 in the mean over the sphere and all orders, of either sign.
    table = legendre_functions(np.array(latitude), truncation + 2)
    table[:, 1:] /= np.sqrt(2)
    return [table[m:, m].astype(np.float32) for m in range(truncation + 1)]


def _check_pair(keys: VectorKeys, part: str, sizes: dict[str, Any]) -> bool:
    """Whether vorticity and divergence are there, which must be of equal size."""
    pair = {key: sizes.get(key) for key in (keys.vorticity, keys.divergence)}
    if len({*pair.values()}) > 1:
        (first, size), (second, other) = pair.items()
        raise ValueError(
            f"winds are made of vorticity and divergence of one size; got {first}: "
            f"{size}, {second}: {other} in {part} (None is a variable that is missing)"
        )
    return keys.vorticity in sizes


def _rings(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes of the rings of a grid, and their numbers of points."""
    with opened(path) as file:
        if {"ring_lats", "ring_nlon"} <= {*file.variables}:
            latitude, counts = (file[k].values for k in ("ring_lats", "ring_nlon"))
        elif {"latitude", "longitude"} <= {*file.variables}:
            points, longitude = (file[k].values for k in ("latitude", "longitude"))
            starts = np.flatnonzero(np.diff(points, prepend=np.inf))
            latitude, counts = points[starts], np.diff(starts, append=points.size)
            even = np.concatenate([np.arange(n) * (360 / n) for n in counts])
            if longitude.shape != even.shape or not np.allclose(longitude, even):
                raise ValueError(
                    f"{path}: expected points in rings of one latitude, evenly spaced "
                    f"from longitude 0 on, got longitudes {longitude[:3]} ... at "
                    f"latitudes {points[:3]} ..."
                )
        else:
            raise ValueError(
                f"{path}: expected latitude and longitude of points, or ring_lats and "
                f"ring_nlon; got {', '.join(sorted(map(str, file.variables)))}"
            )
    if not (np.diff(latitude) < 0).all() or counts.min() < 1:
        raise ValueError(
            f"{path}: expected rings of points from north to south, got latitudes "
            f"{latitude[:3]} ... with {counts[:3]} ... points"
        )
    return latitude.astype(np.float64), counts.astype(np.int64)
