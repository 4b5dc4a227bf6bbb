"""NetCDF files, written whole.

A file is made in memory first: HDF5 cannot close a file that does not fit on its disk,
and then crashes the process when it ends, whatever its exit code was to be.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore
from xarray.conventions import encode_cf_variable, encode_dataset_coordinates

# Encoding of variables by name, as in `xarray.Dataset.to_netcdf`.
Encoding = Mapping[Any, Mapping[str, Any]]


def write_netcdf(
    dataset: xr.Dataset, path: Path, encoding: Encoding | None = None
) -> None:
    """Writes a NetCDF-4 file.

    Args:
        dataset: dataset to write.
        path: path of the file.
        encoding: encoding of its variables.

    Raises:
        OSError: it cannot be written.
    """
    content = dataset.to_netcdf(None, engine="h5netcdf", encoding=encoding)
    path.write_bytes(content)


@dataclass(frozen=True)
class NetcdfSeries:
    """Writes NetCDF-4 files of numbers that have one layout, or a few.

    The files are those of `write_netcdf`. It spends nine tenths of its time, of which
    all is in Python, on the dims and attributes of a file; here these are made once,
    and copied. Chunks are at most as long as their dims.

    Attributes:
        encoding: encoding of the variables.
    """

    encoding: Encoding = field(default_factory=dict)
    _layouts: dict[str, bytes] = field(default_factory=dict)

    def write(self, dataset: xr.Dataset, path: Path) -> None:
        """Writes a file.

        Args:
            dataset: dataset to write; all of its variables are numbers or times.
            path: path of the file.

        Raises:
            OSError: it cannot be written.
        """
        variables, attributes = self._encoded(dataset)
        # Units of times may differ: those that do not fit their dates are replaced.
        layout = str([(k, v.sizes, v.dtype, v.attrs) for k, v in variables.items()])
        if layout not in self._layouts:
            self._layouts[layout] = self._without_values(variables, attributes)
        content = io.BytesIO(self._layouts[layout])
        with h5py.File(content, "r+") as file:
            for name, variable in variables.items():
                array: Any = file[name]
                array[...] = variable.values
        path.write_bytes(content.getbuffer())

    def check(self, dataset: xr.Dataset) -> None:
        """Checks that the variables of a dataset can be written.

        Raises:
            ValueError: their encoding is invalid.
        """
        variables, attributes = self._encoded(dataset)
        for name, variable in variables.items():
            if variable.dtype == np.float16:
                raise ValueError(
                    f"{name}: NetCDF has no float16 (its library crashes on such "
                    "files, CREDIT's are empty); take float32, with zlib to save space"
                )
            chunks, dims = variable.encoding.get("chunksizes"), variable.dims
            if chunks is not None and len(chunks) != len(dims):
                raise ValueError(
                    f"{name}: chunksizes {list(chunks)} has {len(chunks)} numbers, "
                    f"expected {len(dims)}: {', '.join(map(str, dims))}"
                )
        try:
            self._without_values(variables, attributes)
        except (TypeError, ValueError) as error:
            raise ValueError(f"no NetCDF file can have it: {error}") from error

    def _encoded(
        self, dataset: xr.Dataset
    ) -> tuple[dict[str, xr.Variable], Mapping[Any, Any]]:
        """The variables as they are in the file, and its attributes."""
        variables, attributes = encode_dataset_coordinates(dataset)
        encoded = {}
        for name, variable in variables.items():
            if name in self.encoding:
                variable.encoding = _fitting(self.encoding[name], variable.shape)
            encoded[str(name)] = encode_cf_variable(variable, name=name)
        return encoded, attributes

    def _without_values(
        self, variables: Mapping[str, xr.Variable], attributes: Mapping[Any, Any]
    ) -> bytes:
        """A file whose variables have no values yet, and take no space."""
        content = io.BytesIO()
        store = H5NetCDFStore.open(content, mode="w")
        store.store(variables, attributes, frozenset(self.encoding), writer=_NoValues())
        store.close()
        return content.getvalue()


def _fitting(encoding: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The encoding of a variable, with chunks that are at most as large as it."""
    chunks = encoding.get("chunksizes")
    if chunks is None or len(chunks) != len(shape):
        return dict(encoding)
    return {**encoding, "chunksizes": tuple(map(min, chunks, shape))}


class _NoValues:
    """Leaves the values of variables out, in place of xarray's `ArrayWriter`."""

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        """Writes nothing."""
