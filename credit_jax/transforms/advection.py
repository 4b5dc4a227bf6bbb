"""`semilagrangian_advection`, before or after the model: advects tracers."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt, PrivateAttr

from credit_jax.config.components import PackagedFile
from credit_jax.io.errors import errors_of
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    indices_of,
    take_indices,
)
from credit_jax.physics.advection import Advection, Wind
from credit_jax.physics.arrays import num_rows
from credit_jax.physics.files import (
    Coefficients,
    level_numbers,
    read_arrays,
    read_coefficients,
)
from credit_jax.transforms.base import (
    FieldTree,
    InputBlock,
    LevelFile,
    OutputBlock,
    Reach,
    StepContext,
    Transform,
    TreeSchema,
    get_field,
    postblock,
    preblock,
    with_fields,
)


class _Advection(Transform):
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

    reach: ClassVar = Reach.GRID

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

    # Coefficients of the interfaces, and the grid of the file in degrees.
    _half_levels: Coefficients = PrivateAttr()
    _latitude: np.ndarray = PrivateAttr()
    _longitude: np.ndarray = PrivateAttr()
    # Numbers of the levels in their file, from the top; None if it has none.
    _numbers: CoordinateValues | None = PrivateAttr()

    def open(self) -> None:
        """Reads the coefficients and the grid."""
        names = self.model_a_half_var, self.model_b_half_var
        self._half_levels = read_coefficients(
            self.level_info_file, *names, self.levels, interfaces=True
        )
        self._latitude, self._longitude = read_arrays(
            self.grid_info_file or self.level_info_file,
            (self.latitude_var, self.longitude_var),
        )
        self._numbers = level_numbers(
            self.level_info_file, names[0], self.levels, between=True
        )

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        numbers = self._numbers
        if numbers is not None and self.level_order == "surface_to_top":
            numbers = numbers[::-1]
        keys = (self.u_var, self.v_var, *self.tracer_vars)
        names = f"{self.model_a_half_var}, {self.model_b_half_var}"
        origin = f"{self.level_info_file}: {names}"
        return (LevelFile(origin, keys.__contains__, numbers),)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> _Advection:
        """Returns the block with its rows and columns in the order of the data.

        A file with another number of points is replaced, see `grid_info_file`.

        Raises:
            ValueError: the grid file has another grid.
        """
        size = len(grid.latitude or ()), len(grid.longitude or ())
        if (self._latitude.size, self._longitude.size) != size:
            return self
        files = self.grid_info_file or self.level_info_file, grid.where
        rows = indices_of(grid.latitude, self._latitude, "latitude", *files)
        columns = indices_of(grid.longitude, self._longitude, "longitude", *files)
        return self.with_values(
            _latitude=take_indices(self._latitude, rows, 0),
            _longitude=take_indices(self._longitude, columns, 0),
        )

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the tracers of every entry.

        Raises:
            ValueError: an entry or a variable is missing, or the coefficients do not
                fit the levels.
        """
        new = dict(tree)
        for part in self.entries_in(tree):
            new = self._moved(new, part, context)
        return new

    def _moved(
        self, tree: FieldTree, part: str, context: StepContext
    ) -> dict[str, Any]:
        """The tree with the moved tracers of an entry."""
        # The formulas go from the top down; the same slice turns the tracers back.
        down = slice(None, None, 1 if self.level_order == "top_to_surface" else -1)

        def field(key: str) -> Any:
            return get_field(tree, part, key)[:, down]

        wind = Wind(
            field(self.u_var),
            field(self.v_var),
            field(self.surface_pressure_var),
            None if self.omega_var is None else field(self.omega_var),
        )
        # The step on a grid of this size.
        lat = num_rows(wind.u, context)
        lon = wind.u.shape[-1]
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
            self._half_levels,
            self.timestep_seconds,
            self.n_iterations,
            self.coslat_floor,
            self.dp_dlevel_floor,
        )
        tracers = [field(key) for key in self.tracer_vars]
        names = self.model_a_half_var, self.model_b_half_var
        with errors_of(self.level_info_file, *names):
            moved = step(tracers, wind, context)
        moved = [tracer[:, down] for tracer in moved]
        return with_fields(tree, part, dict(zip(self.tracer_vars, moved, strict=True)))


@preblock("semilagrangian_advection")
class AdvectionPreblock(InputBlock, _Advection):
    """Advects tracers of the data by one step of the wind."""


@postblock("semilagrangian_advection")
class AdvectionPostblock(OutputBlock, _Advection):
    """Advects predicted tracers by one step of the wind."""
