"""`regrid`: interpolates fields to another grid by a sparse matrix of ESMF."""

from __future__ import annotations

from os.path import expandvars
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from pydantic import PrivateAttr
from scipy.sparse import csr_array

from credit_jax.config.components import FilePath
from credit_jax.io.open_files import opened
from credit_jax.transforms.base import (
    Effects,
    FieldTree,
    Grid,
    InputBlock,
    Reach,
    StepContext,
    Where,
    map_fields,
    preblock,
)


@preblock("regrid")
class Regrid(InputBlock):
    """Interpolates fields to another grid by a sparse matrix of ESMF.

    Attributes:
        weight_file: NetCDF file of ESMF with row, col and S of the matrix.
        variables: whole keys of the variables to regrid.
        reshape_to_xy: whether the new fields are (lat, lon) instead of (point,).
        flip_axis: axes of the old fields to flip first, -1 or -2.
    """

    where: ClassVar = Where.HOST
    reach: ClassVar = Reach.GRID
    keeps_units: ClassVar = True

    weight_file: FilePath
    variables: tuple[str, ...]
    reshape_to_xy: bool = True
    flip_axis: tuple[int, ...] | None = None

    # (new points, old points) float32, and the grid of the regridded fields.
    _matrix: csr_array = PrivateAttr()
    _num_points: int = PrivateAttr()
    _grid: Grid = PrivateAttr()

    def open(self) -> None:
        """Reads the matrix and the new grid."""
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
    def effects(self) -> Effects:
        return Effects(moves=self.variables, grid=self._grid)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Interpolates fields (batch, level, time, lat, lon) or (..., point)."""
        change = lambda key, x: self._regrid(key, x) if key in self.variables else x  # noqa: E731
        return map_fields(tree, change, self.data_types)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Returns a copy of the tree, since units do not depend on the grid."""
        return dict(tree)

    def _regrid(self, key: str, x: np.ndarray) -> np.ndarray:
        count = self._num_points
        num_dims = 1 if x.shape[-1] == count else 2
        if num_dims == 2 and (x.ndim < 2 or x.shape[-2] * x.shape[-1] != count):
            raise ValueError(
                f"{key} has a grid of {' x '.join(map(str, x.shape[3:]))}, but "
                f"{self.weight_file} takes {count} points; make weights for this grid, "
                "or leave the variable out"
            )
        lead = x.shape[: x.ndim - num_dims]
        flips = tuple(axis for axis in self.flip_axis or () if -num_dims <= axis < 0)
        x = np.flip(x, flips) if flips else x
        points = np.asarray(x.reshape(-1, count), np.float32)
        new = np.ascontiguousarray((self._matrix @ points.T).T)
        return new.reshape(*lead, *(self._grid.shape if self.reshape_to_xy else (-1,)))


def _new_grid(weights: xr.Dataset, reshape_to_xy: bool) -> Grid:
    """The new grid; if the file has no two dims, they are the distinct coordinates."""
    dims = weights["dst_grid_dims"].values
    if len(dims) == 2:
        shape = int(dims[1]), int(dims[0])
    elif not reshape_to_xy:
        return Grid((1, int(weights.sizes["n_b"])))
    else:
        rows, columns = (np.unique(weights[k].values).size for k in ("yc_b", "xc_b"))
        shape = rows, columns
    if "yc_b" not in weights or "xc_b" not in weights:
        return Grid(shape)
    latitude = weights["yc_b"].values.reshape(shape)
    longitude = weights["xc_b"].values.reshape(shape)
    straight = np.allclose(latitude, latitude[:, :1])
    if not (straight and np.allclose(longitude, longitude[:1])):
        return Grid(shape)
    return Grid(shape, latitude[:, 0].astype(float), longitude[0].astype(float))
