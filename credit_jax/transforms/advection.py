"""`semilagrangian_advection`, before or after the model: advects tracers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from credit_jax.config import StrictModel
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    places_of,
    take_places,
)
from credit_jax.physics.advection import Advection, Wind
from credit_jax.physics.files import (
    Coefficients,
    level_numbers,
    read_arrays,
    read_coefficients,
)
from credit_jax.physics.rows import num_rows
from credit_jax.transforms.base import FieldTree, LevelFile, Transform, TreeSchema
from credit_jax.transforms.named import get_field, with_fields


class AdvectionArgs(StrictModel):
    """Arguments that both blocks share.

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

    tracer_vars: tuple[str, ...] = ("ERA5/prognostic/3d/specific_humidity",)
    u_var: str = "ERA5/prognostic/3d/u_component_of_wind"
    v_var: str = "ERA5/prognostic/3d/v_component_of_wind"
    surface_pressure_var: str = "ERA5/prognostic/2d/surface_pressure"
    timestep_seconds: float = 21600.0
    n_iterations: PositiveInt = 2
    omega_var: str | None = None
    level_info_file: str = "ERA5_Lev_Info.nc"
    model_a_half_var: str = "a_half"
    model_b_half_var: str = "b_half"
    levels: tuple[int, ...] | None = None
    level_order: Literal["top_to_surface", "surface_to_top"] = "top_to_surface"
    grid_info_file: str | None = None
    latitude_var: str = "latitude"
    longitude_var: str = "longitude"
    coslat_floor: float = 1e-4
    dp_dlevel_floor: float = 1.0
    lon_halo: int = 1


class AdvectionPreArgs(AdvectionArgs):
    """Advects tracers of the data by one step of the wind.

    Attributes:
        data_types: entries to change; missing ones are skipped.
    """

    data_types: tuple[Literal["input", "target"], ...] = ("input", "target")


class AdvectionPostArgs(AdvectionArgs):
    """Advects predicted tracers by one step of the wind.

    Attributes:
        key: entry to change.
    """

    key: str = "y_processed"


@dataclasses.dataclass(frozen=True, eq=False)
class AdvectTracers(Transform):
    """Replaces tracers by their values at the departure points of the air.

    Attributes:
        args: see `AdvectionArgs`.
        parts: entries of the tree to change.
        required: whether a missing entry is an error.
        half_levels: coefficients of the interfaces.
        latitude: (lat,) degrees north, of the grid file.
        longitude: (lon,) degrees east, of the grid file.
        numbers: numbers of the levels in their file, from the top; None if it has none.
    """

    args: AdvectionArgs
    parts: tuple[str, ...]
    required: bool
    half_levels: Coefficients
    latitude: np.ndarray
    longitude: np.ndarray
    numbers: CoordinateValues | None = None

    @property
    def needs_grid(self) -> bool:
        """True: winds move tracers over rows."""
        return True

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        args, numbers = self.args, self.numbers
        if numbers is not None and args.level_order == "surface_to_top":
            numbers = numbers[::-1]
        keys = (args.u_var, args.v_var, *args.tracer_vars)
        names = f"{args.model_a_half_var}, {args.model_b_half_var}"
        where = f"{args.level_info_file}: {names}"
        return (LevelFile(where, keys.__contains__, numbers),)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> AdvectTracers:
        """Returns the block with its rows and columns in the order of the data.

        A file with another number of points is replaced, see `AdvectionArgs`.

        Raises:
            ValueError: the grid file has another grid.
        """
        size = len(grid.latitude or ()), len(grid.longitude or ())
        if (self.latitude.size, self.longitude.size) != size:
            return self
        args = self.args
        where = args.grid_info_file or args.level_info_file, grid.where
        rows = places_of(grid.latitude, self.latitude, "latitude", *where)
        columns = places_of(grid.longitude, self.longitude, "longitude", *where)
        latitude = take_places(self.latitude, rows, 0)
        longitude = take_places(self.longitude, columns, 0)
        return dataclasses.replace(self, latitude=latitude, longitude=longitude)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces the tracers of every entry.

        Raises:
            ValueError: an entry or a variable is missing, or the coefficients do not
                fit the levels.
        """
        new = dict(tree)
        for part in self.parts:
            if part in new or self.required:
                new = with_fields(new, part, self._moved(new, part, context))
        return new

    def _moved(
        self, tree: FieldTree, part: str, context: FieldContext | None
    ) -> dict[str, Any]:
        args = self.args
        # The formulas go from the top down; the same slice turns the tracers back.
        down = slice(None, None, 1 if args.level_order == "top_to_surface" else -1)

        def field(key: str) -> Any:
            return get_field(tree, part, key)[:, down]

        wind = Wind(
            field(args.u_var),
            field(args.v_var),
            field(args.surface_pressure_var),
            None if args.omega_var is None else field(args.omega_var),
        )
        step = self._step(num_rows(wind.u, context), wind.u.shape[-1])
        tracers = [field(key) for key in args.tracer_vars]
        names = args.model_a_half_var, args.model_b_half_var
        with errors_of(args.level_info_file, *names):
            moved = step(tracers, wind, context)
        moved = [tracer[:, down] for tracer in moved]
        return dict(zip(args.tracer_vars, moved, strict=True))

    def _step(self, lat: int, lon: int) -> Advection:
        """The step on a grid of this size."""
        args, latitude, longitude = self.args, self.latitude, self.longitude
        if (len(latitude), len(longitude)) != (lat, lon):
            warnings.warn(
                "semilagrangian_advection: the grid file has "
                f"{len(latitude)} x {len(longitude)} points, the fields {lat} x {lon}; "
                "an even grid from 90 to -90 degrees is assumed (grid_info_file)",
                stacklevel=2,
            )
            latitude = np.linspace(90.0, -90.0, lat)
            longitude = np.arange(lon) * (360.0 / lon)
        return Advection(
            latitude,
            longitude,
            self.half_levels,
            args.timestep_seconds,
            args.n_iterations,
            args.coslat_floor,
            args.dp_dlevel_floor,
        )


def build_advection_pre(args: AdvectionPreArgs) -> AdvectTracers:
    """Builds the preblock; reads the coefficients and the grid."""
    return AdvectTracers(args, args.data_types, False, *_constants(args))


def build_advection_post(args: AdvectionPostArgs) -> AdvectTracers:
    """Builds the postblock; reads the coefficients and the grid."""
    return AdvectTracers(args, (args.key,), True, *_constants(args))


def _constants(
    args: AdvectionArgs,
) -> tuple[Coefficients, np.ndarray, np.ndarray, CoordinateValues | None]:
    half_levels = read_coefficients(
        args.level_info_file,
        args.model_a_half_var,
        args.model_b_half_var,
        args.levels,
        interfaces=True,
    )
    latitude, longitude = read_arrays(
        args.grid_info_file or args.level_info_file,
        (args.latitude_var, args.longitude_var),
    )
    numbers = level_numbers(
        args.level_info_file, args.model_a_half_var, args.levels, between=True
    )
    return half_levels, latitude, longitude, numbers
