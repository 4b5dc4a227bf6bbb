"""`regrid`: interpolates fields to another grid by a sparse matrix of ESMF."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import expandvars
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.sparse import csr_array

from credit_jax.config import StrictModel
from credit_jax.io.open_files import opened
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, Grid, Transform, map_fields
from credit_jax.transforms.selection import DataType


class RegridArgs(StrictModel):
    """Interpolates fields to another grid by a sparse matrix of ESMF.

    Attributes:
        weight_file: NetCDF file of ESMF with row, col and S of the matrix.
        variables: whole keys of the variables to regrid.
        data_types: entries to change.
        reshape_to_xy: whether the new fields are (lat, lon) instead of (point,).
        flip_axis: axes of the old fields to flip first, -1 or -2.
    """

    weight_file: str
    variables: tuple[str, ...]
    data_types: tuple[DataType, ...] = ("input", "target")
    reshape_to_xy: bool = True
    flip_axis: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Regrid(Transform):
    """Multiplies the points of some variables by a sparse matrix.

    Attributes:
        args: see `RegridArgs`.
        matrix: (new points, old points) float32.
        num_points: number of points of the old grid.
        target: the grid of the regridded fields.
    """

    args: RegridArgs
    matrix: csr_array
    num_points: int
    target: Grid
    keeps_units: ClassVar = True

    @property
    def new_grid(self) -> Grid:
        """The target."""
        return self.target

    @property
    def needs_grid(self) -> bool:
        """True: an interpolation reads any row."""
        return True

    @property
    def moves_fields(self) -> bool:
        """True."""
        return True

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Interpolates fields (batch, level, time, lat, lon) or (..., point).

        Raises:
            ValueError: a field has another number of points than the matrix.
        """
        return map_fields(
            tree,
            lambda key, x: self._regrid(key, x) if key in self.args.variables else x,
            self.args.data_types,
        )

    def variables_read(self) -> tuple[str, ...]:
        """See `Transform`."""
        return self.args.variables

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Returns a copy of the tree, since units do not depend on the grid."""
        return dict(tree)

    def _regrid(self, key: str, x: np.ndarray) -> np.ndarray:
        num_dims = self._spatial_dims(key, x.shape)
        lead = x.shape[: x.ndim - num_dims]
        axes = self.args.flip_axis or ()
        flips = tuple(axis for axis in axes if -num_dims <= axis < 0)
        x = np.flip(x, flips) if flips else x
        points = np.asarray(x.reshape(-1, self.num_points), np.float32)
        new = np.ascontiguousarray((self.matrix @ points.T).T)
        to_xy = self.args.reshape_to_xy
        return new.reshape(*lead, *(self.new_grid.shape if to_xy else (-1,)))

    def _spatial_dims(self, key: str, shape: tuple[int, ...]) -> int:
        num_points = self.num_points
        if shape[-1] == num_points:
            return 1
        if len(shape) > 1 and shape[-2] * shape[-1] == num_points:
            return 2
        raise ValueError(
            f"regrid: {key} has a grid of {' x '.join(map(str, shape[3:]))}, but "
            f"{self.args.weight_file} takes {num_points} points; make weights for this "
            "grid, or leave the variable out"
        )


def build_regrid(args: RegridArgs) -> Regrid:
    """Builds the block; reads the matrix and the new grid.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a weight file of ESMF.
    """
    path = expandvars(args.weight_file)
    with opened(path) as weights:
        lacking = {"row", "col", "S", "dst_grid_dims"} - set(map(str, weights))
        if lacking:
            raise ValueError(
                f"regrid: {path} is no weight file of ESMF: it lacks "
                f"{', '.join(sorted(lacking))}"
            )
        entries = weights["S"].values.astype(np.float32)
        places = weights["row"].values - 1, weights["col"].values - 1
        shape = int(weights.sizes["n_b"]), int(weights.sizes["n_a"])
        grid = _new_grid(weights, args.reshape_to_xy)
    return Regrid(args, csr_array((entries, places), shape), shape[1], grid)


def _new_grid(weights: xr.Dataset, reshape_to_xy: bool) -> Grid:
    """The new grid; if the file has no two dims, they are the distinct coordinates."""
    dims = weights["dst_grid_dims"].values
    if len(dims) == 2:
        shape = int(dims[1]), int(dims[0])
    elif not reshape_to_xy:
        return Grid((1, int(weights.sizes["n_b"])))
    else:
        shape = _distinct(weights, "yc_b"), _distinct(weights, "xc_b")
    if "yc_b" not in weights or "xc_b" not in weights:
        return Grid(shape)
    latitude = weights["yc_b"].values.reshape(shape)
    longitude = weights["xc_b"].values.reshape(shape)
    if not (_same(latitude, latitude[:, :1]) and _same(longitude, longitude[:1])):
        return Grid(shape)
    return Grid(shape, latitude[:, 0].astype(float), longitude[0].astype(float))


def _distinct(weights: xr.Dataset, name: str) -> int:
    return np.unique(weights[name].values).size


def _same(values: Float[np.ndarray, "lat lon"], edge: np.ndarray) -> bool:
    return bool(np.allclose(values, edge))
