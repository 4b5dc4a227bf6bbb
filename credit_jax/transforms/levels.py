"""Blocks of grids and levels.

`regrid` interpolates to another grid by a sparse matrix of ESMF, `hybrid_level_interp`
to other levels; `semilagrangian_advection` advects tracers. The last two are before or
after the model.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from os.path import expandvars
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from pydantic import PositiveInt, PrivateAttr
from scipy.sparse import csr_array

from credit_jax.config.components import FilePath, PackagedFile
from credit_jax.config.sources.source import OUTPUT_TYPES
from credit_jax.io.errors import errors_of
from credit_jax.io.open_files import opened
from credit_jax.named_fields import coordinates
from credit_jax.named_fields.coordinates import GridCoordinates, indices_of
from credit_jax.physics.advection import Advection, Wind
from credit_jax.physics.arrays import fill_padding, num_rows
from credit_jax.physics.files import (
    Coefficients,
    level_numbers,
    read_arrays,
    read_coefficients,
)
from credit_jax.physics.vertical import hybrid_pressure, interpolate_columns, rises
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, StepContext, Transform, TreeSchema


class _ByEntry(Transform):
    """A block that is applied to each entry by itself, before or after the model."""

    # (tree, entry, context) -> the tree with new variables of one entry.
    replaced: ClassVar[Callable[..., dict[str, Any]]]

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        for part in self.entries(tree):
            tree = self.replaced(tree, part, context)
        return dict(tree)


class OfLevels(Transform):
    """A block that reads the coefficients of the levels of the data from a file.

    Attributes of the class name fields: `level_fields` the file, the names of a (Pa)
    and b, and the levels that are taken; `on_levels` keys of variables on these levels.
    `interfaces` says whether coefficients are those of the interfaces of levels, and
    not the centers.
    """

    level_fields: ClassVar[tuple[str, str, str, str]] = (
        "level_info_file",
        "model_a_half_var",
        "model_b_half_var",
        "levels",
    )
    on_levels: ClassVar[tuple[str, ...]]
    interfaces: ClassVar[bool] = True

    # Coefficients of the levels of the data, a in Pa, and b.
    _coefficients: Coefficients = PrivateAttr()
    # Numbers of these levels in their file; None if it has none.
    _numbers: coordinates.CoordinateValues | None = PrivateAttr()

    @property
    def level_origin(self) -> tuple[Any, ...]:
        """The file of the coefficients, and their names."""
        return tuple(getattr(self, name) for name in self.level_fields[:3])

    def open(self) -> None:
        super().open()
        (path, a, b), on = self.level_origin, self.interfaces
        levels = getattr(self, self.level_fields[3])
        self._coefficients = read_coefficients(path, a, b, levels, interfaces=on)
        self._numbers = level_numbers(path, a, levels, between=on)

    @property
    def level_files(self) -> tuple[base.LevelFile, ...]:
        path, *names = self.level_origin
        keys: list[str] = []
        for key in (getattr(self, name) for name in self.on_levels):
            keys += [key] if isinstance(key, str) else key
        origin = f"{path}: {', '.join(names)}"
        return (base.LevelFile(origin, keys.__contains__, self._numbers),)


class _LevelInterp(OfLevels, _ByEntry):
    """Interpolates variables to other hybrid levels, linearly in log(pressure).

    Attributes:
        variables: keys of 3-D variables; missing ones are skipped.
        surface_pressure_var: key of surface pressure, Pa.
        source_level_info_file: file with the levels of the data; a name without a
            folder may be that of a file of this package.
        dest_level_info_file: file with the levels to interpolate to.
        source_a_var, source_b_var: names of the coefficients a (Pa) and b. The same
            name for both is a variable whose first two rows are a and b.
        source_on_interfaces: whether the coefficients are those of interfaces, which
            are averaged to centers.
        source_levels: levels to take, counted from 1; null takes all.
        dest_a_var, dest_b_var, dest_on_interfaces, dest_levels: the same for
            `dest_level_info_file`.
        chunk_size: no effect; all columns are computed at once.
    """

    level_fields: ClassVar = (
        "source_level_info_file",
        "source_a_var",
        "source_b_var",
        "source_levels",
    )
    on_levels: ClassVar = ("variables",)

    variables: tuple[str, ...]
    surface_pressure_var: str
    source_level_info_file: PackagedFile
    dest_level_info_file: PackagedFile = "ERA5_Lev_Info.nc"
    source_a_var: str = "a_half"
    source_b_var: str = "b_half"
    source_on_interfaces: bool = True
    source_levels: tuple[int, ...] | None = None
    dest_a_var: str = "a_half"
    dest_b_var: str = "b_half"
    dest_on_interfaces: bool = True
    dest_levels: tuple[int, ...] | None = None
    chunk_size: int = 1000

    # Coefficients at the centers of the new levels.
    _dest: Coefficients = PrivateAttr()

    def open(self) -> None:
        path, a, b = self.level_origin
        self._coefficients = read_coefficients(
            path, a, b, self.source_levels, between=self.source_on_interfaces
        )
        self._dest = read_coefficients(
            self.dest_level_info_file,
            self.dest_a_var,
            self.dest_b_var,
            self.dest_levels,
            between=self.dest_on_interfaces,
        )
        self._numbers = level_numbers(
            path, a, self.source_levels, between=self.source_on_interfaces
        )

    def replaced(
        self, tree: FieldTree, part: str, context: StepContext
    ) -> dict[str, Any]:
        """The tree with the variables of an entry on the new levels."""
        if part not in tree:
            raise ValueError(
                f"the batch has no {part!r}; it has: {', '.join(sorted(tree))}"
            )
        fields = tree[part]
        present = [k for k in self.variables if k in fields.get(base.source_of(k), {})]
        if not present:
            return dict(tree)
        pressure = base.get_field(tree, part, self.surface_pressure_var)
        pressure = fill_padding(pressure, 1e5, context)
        # From the top down.
        down = slice(None, None, 1 if rises(*self._coefficients) else -1)
        a, b = (x[down] for x in self._coefficients)
        source = hybrid_pressure((a, b), pressure)
        dest = hybrid_pressure(self._dest, pressure)
        moved = {}
        for key in present:
            field = base.get_field(tree, part, key)
            self._check_levels(part, key, field.shape[1])
            moved[key] = interpolate_columns(field[:, down], source, dest)
        return base.with_fields(tree, part, moved)

    def _check_levels(self, part: str, key: str, levels: int) -> None:
        count = len(self._coefficients[0])
        if levels != count:
            raise ValueError(
                f"{key} of {part} has {levels} levels, the source coefficients "
                f"({self.source_level_info_file}: {self.source_a_var}, "
                f"{self.source_b_var}) are of {count}; give source_levels, counted "
                "from 1"
            )


@base.preblock("hybrid_level_interp")
class LevelInterpPreblock(base.InputBlock, _LevelInterp):
    """Interpolates the fields of the data to other hybrid levels."""

    @property
    def effects(self) -> base.Effects:
        if not any(map(is_predicted, self.variables)):
            return base.Effects()
        return base.Effects(moves=(*self.variables, self.surface_pressure_var))

    def check(self, schema: TreeSchema) -> None:
        """Checks that variables of the data are on the source levels."""
        for part in filter(schema.__contains__, self.data_types):
            for group in schema[part]:
                if group.var_key in self.variables:
                    self._check_levels(part, group.var_key, group.n_levels)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """The variables with their new numbers of levels."""
        new_schema, count = dict(schema), len(self._dest[0])
        for part in filter(schema.__contains__, self.data_types):
            new_schema[part] = [
                dataclasses.replace(group, n_levels=count, levels=None)
                if group.var_key in self.variables
                else group
                for group in schema[part]
            ]
        return new_schema


@base.postblock("hybrid_level_interp")
class LevelInterpPostblock(base.OutputBlock, _LevelInterp):
    """Interpolates predicted fields to other hybrid levels."""


def is_predicted(var_key: str) -> bool:
    """Whether the field type of a key is one that a model predicts."""
    return var_key.split("/")[1:2] in ([kind] for kind in OUTPUT_TYPES)


class _Advection(OfLevels, _ByEntry):
    """Replaces tracers by their values at the departure points of the air.

    Attributes:
        tracer_vars: keys of the variables to advect.
        u_var, v_var: keys of the wind, m / s.
        surface_pressure_var: key of surface pressure, Pa.
        timestep_seconds: length of the step.
        n_iterations: iterations for the midpoint of a trajectory.
        omega_var: key of vertical velocity, Pa / s; null derives it from continuity.
        level_info_file: file with the coefficients of the interfaces; a name without a
            folder may be that of a file of this package.
        model_a_half_var, model_b_half_var: names of the coefficients a (Pa) and b.
        levels: levels of the data, counted from 1; null takes all.
        level_order: order of the levels of the data.
        grid_info_file: file with latitude and longitude; null is `level_info_file`. If
            it has another number of points, a regular grid from 90 to -90 degrees is
            assumed, with a warning.
        latitude_var, longitude_var: names of latitude and longitude in that file.
        coslat_floor: smallest cos(latitude) in a divisor.
        dp_dlevel_floor: smallest pressure difference between levels, Pa.
        lon_halo: no effect; longitude is periodic without a halo.
    """

    reach: ClassVar = base.Reach.GRID
    on_levels: ClassVar = ("u_var", "v_var", "tracer_vars")

    tracer_vars: tuple[str, ...] = ("ERA5/prognostic/3d/specific_humidity",)
    u_var: str = "ERA5/prognostic/3d/u_component_of_wind"
    v_var: str = "ERA5/prognostic/3d/v_component_of_wind"
    surface_pressure_var: str = "ERA5/prognostic/2d/surface_pressure"
    timestep_seconds: float = 21600.0
    n_iterations: PositiveInt = 2
    omega_var: str | None = None
    level_info_file: PackagedFile = "ERA5_Lev_Info.nc"
    model_a_half_var: str = "a_half"
    model_b_half_var: str = "b_half"
    levels: tuple[int, ...] | None = None
    level_order: Literal["top_to_surface", "surface_to_top"] = "top_to_surface"
    grid_info_file: PackagedFile | None = None
    latitude_var: str = "latitude"
    longitude_var: str = "longitude"
    coslat_floor: float = 1e-4
    dp_dlevel_floor: float = 1.0
    lon_halo: int = 1

    # The grid of the file in degrees.
    _latitude: np.ndarray = PrivateAttr()
    _longitude: np.ndarray = PrivateAttr()

    def open(self) -> None:
        super().open()
        if self._numbers is not None and self.level_order == "surface_to_top":
            self._numbers = self._numbers[::-1]
        self._latitude, self._longitude = read_arrays(
            self.grid_info_file or self.level_info_file,
            (self.latitude_var, self.longitude_var),
        )

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> _Advection:
        """Returns the block with its rows and columns in the order of the data."""
        # A file with another number of points is replaced, see `grid_info_file`.
        size = len(grid.latitude or ()), len(grid.longitude or ())
        if (self._latitude.size, self._longitude.size) != size:
            return self
        files = self.grid_info_file or self.level_info_file, grid.where
        rows = indices_of(grid.latitude, self._latitude, "latitude", *files)
        columns = indices_of(grid.longitude, self._longitude, "longitude", *files)
        return self.with_values(
            _latitude=coordinates.take_indices(self._latitude, rows, 0),
            _longitude=coordinates.take_indices(self._longitude, columns, 0),
        )

    def replaced(
        self, tree: FieldTree, part: str, context: StepContext
    ) -> dict[str, Any]:
        """The tree with the moved tracers of an entry."""
        # The formulas go from the top down; the same slice turns the tracers back.
        down = slice(None, None, 1 if self.level_order == "top_to_surface" else -1)

        def field(key: str) -> Any:
            return base.get_field(tree, part, key)[:, down]

        wind = Wind(
            field(self.u_var),
            field(self.v_var),
            field(self.surface_pressure_var),
            None if self.omega_var is None else field(self.omega_var),
        )
        # The step on a grid of this size.
        lat, lon = num_rows(wind.u, context), wind.u.shape[-1]
        latitude, longitude = self._latitude, self._longitude
        if (len(latitude), len(longitude)) != (lat, lon):
            warnings.warn(
                "semilagrangian_advection: the grid file has "
                f"{len(latitude)} x {len(longitude)} points, the fields {lat} x {lon}; "
                "an even grid from 90 to -90 degrees is assumed (grid_info_file)",
                stacklevel=2,
            )
            latitude = np.linspace(90.0, -90.0, lat)
            longitude = np.arange(lon) * (360.0 / lon)
        step = Advection(
            latitude,
            longitude,
            self._coefficients,
            self.timestep_seconds,
            self.n_iterations,
            self.coslat_floor,
            self.dp_dlevel_floor,
        )
        tracers = [field(key) for key in self.tracer_vars]
        with errors_of(*self.level_origin):
            moved = step(tracers, wind, context)
        moved = [tracer[:, down] for tracer in moved]
        return base.with_fields(
            tree, part, dict(zip(self.tracer_vars, moved, strict=True))
        )


@base.preblock("semilagrangian_advection")
class AdvectionPreblock(base.InputBlock, _Advection):
    """Advects tracers of the data by one step of the wind."""


@base.postblock("semilagrangian_advection")
class AdvectionPostblock(base.OutputBlock, _Advection):
    """Advects predicted tracers by one step of the wind."""


@base.preblock("regrid")
class Regrid(base.InputBlock):
    """Interpolates fields to another grid by a sparse matrix of ESMF.

    Attributes:
        weight_file: NetCDF file of ESMF with row, col and S of the matrix.
        variables: whole keys of the variables to regrid.
        reshape_to_xy: whether the new fields are (lat, lon) instead of (point,).
        flip_axis: axes of the old fields to flip first, -1 or -2.
    """

    where: ClassVar = base.Where.HOST
    reach: ClassVar = base.Reach.GRID
    keeps_units: ClassVar = True

    weight_file: FilePath
    variables: tuple[str, ...]
    reshape_to_xy: bool = True
    flip_axis: tuple[int, ...] | None = None

    # (new points, old points) float32, and the grid of the regridded fields.
    _matrix: csr_array = PrivateAttr()
    _num_points: int = PrivateAttr()
    _grid: base.Grid = PrivateAttr()

    def open(self) -> None:
        path = expandvars(self.weight_file)
        with opened(path) as weights:
            lacking = {"row", "col", "S", "dst_grid_dims"} - set(map(str, weights))
            if lacking:
                raise ValueError(
                    f"{path} is no weight file of ESMF: it lacks "
                    f"{', '.join(sorted(lacking))}"
                )
            entries = weights["S"].values.astype(np.float32)
            indices = weights["row"].values - 1, weights["col"].values - 1
            self._num_points = int(weights.sizes["n_a"])
            shape = int(weights.sizes["n_b"]), self._num_points
            self._matrix = csr_array((entries, indices), shape)
            self._grid = _new_grid(weights, self.reshape_to_xy)

    @property
    def effects(self) -> base.Effects:
        return base.Effects(moves=self.variables, grid=self._grid)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Interpolates fields (batch, level, time, lat, lon) or (..., point)."""
        count = self._num_points
        shape = self._grid.shape if self.reshape_to_xy else (-1,)

        def change(key: str, x: np.ndarray) -> np.ndarray:
            if key not in self.variables:
                return x
            num_dims = 1 if x.shape[-1] == count else 2
            if num_dims == 2 and (x.ndim < 2 or x.shape[-2] * x.shape[-1] != count):
                raise ValueError(
                    f"{key} has a grid of {' x '.join(map(str, x.shape[3:]))}, but "
                    f"{self.weight_file} takes {count} points; make weights for this "
                    "grid, or leave the variable out"
                )
            lead = x.shape[: x.ndim - num_dims]
            flips = (axis for axis in self.flip_axis or () if -num_dims <= axis < 0)
            x = np.flip(x, tuple(flips))
            points = np.asarray(x.reshape(-1, count), np.float32)
            new = np.ascontiguousarray((self._matrix @ points.T).T)
            return new.reshape(*lead, *shape)

        return base.map_fields(tree, change, self.data_types)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Returns a copy of the tree, since units do not depend on the grid."""
        return dict(tree)


def _new_grid(weights: xr.Dataset, reshape_to_xy: bool) -> base.Grid:
    """The new grid; if the file has no two dims, they are the distinct coordinates."""
    dims = weights["dst_grid_dims"].values
    if len(dims) == 2:
        shape = int(dims[1]), int(dims[0])
    elif not reshape_to_xy:
        return base.Grid((1, int(weights.sizes["n_b"])))
    else:
        rows, columns = (np.unique(weights[k].values).size for k in ("yc_b", "xc_b"))
        shape = rows, columns
    if "yc_b" not in weights or "xc_b" not in weights:
        return base.Grid(shape)
    latitude = weights["yc_b"].values.reshape(shape)
    longitude = weights["xc_b"].values.reshape(shape)
    straight = np.allclose(latitude, latitude[:, :1])
    if not (straight and np.allclose(longitude, longitude[:1])):
        return base.Grid(shape)
    return base.Grid(shape, latitude[:, 0].astype(float), longitude[0].astype(float))
