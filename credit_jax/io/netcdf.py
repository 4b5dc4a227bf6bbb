"""NetCDF files, written whole.

A file is made in memory first: HDF5 cannot close a file that does not fit on its disk,
and then crashes the process when it ends, whatever its exit code was to be.
"""

from __future__ import annotations

import io
import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

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
    """Writes a NetCDF-4 file."""
    content = dataset.to_netcdf(None, engine="h5netcdf", encoding=encoding)
    path.write_bytes(content)


def attribute_value(value: Any) -> str | int | float:
    """Returns what an attribute can hold: JSON of all but text and numbers."""
    # NetCDF has no booleans, no nulls and no nested values.
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_plain else json.dumps(value)


@dataclass(frozen=True)
class NetcdfSeries:
    """Writes NetCDF-4 files of numbers that have one layout, or a few."""

    # For small files `write_netcdf` spends nine tenths of its time on dims and
    # attributes, and HDF5 runs one thread at a time. Here dims and attributes are made
    # once, and copied; arrays that are contiguous in the file are copied between them
    # without HDF5, and chunks, which are at most as long as their dims, are compressed
    # by the calling thread.
    encoding: Encoding = field(default_factory=dict)  # encoding of the variables
    _layouts: dict[str, _Layout] = field(default_factory=dict)

    def write(self, dataset: xr.Dataset, path: Path) -> None:
        """Writes a file of numbers and times."""
        variables, attributes = self._encoded(dataset)
        # Units of times may differ: those that do not fit their dates are replaced.
        layout = str([(k, v.sizes, v.dtype, v.attrs) for k, v in variables.items()])
        values = {
            name: np.asarray(v.values, order="C") for name, v in variables.items()
        }
        if layout not in self._layouts:
            empty = self._without_values(variables, attributes)
            self._layouts[layout] = _layout_of(empty, values)
        empty, between, order = self._layouts[layout]
        with path.open("wb") as file:
            if not between:
                file.write(_with_values(empty, values).getbuffer())
                return
            for gap, name in zip(between, order, strict=False):
                file.write(gap)
                file.write(values[name].reshape(-1).view(np.uint8).data)
            file.write(between[-1])

    def check(self, dataset: xr.Dataset) -> None:
        """Checks that the variables of a dataset can be written."""
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
                encoding, shape = dict(self.encoding[name]), variable.shape
                chunks = encoding.get("chunksizes")
                if chunks is not None and len(chunks) == len(shape):
                    encoding["chunksizes"] = tuple(map(min, chunks, shape))
                variable.encoding = encoding
            encoded[str(name)] = encode_cf_variable(variable, name=name)
        return encoded, attributes

    def _without_values(
        self, variables: Mapping[str, xr.Variable], attributes: Mapping[Any, Any]
    ) -> bytes:
        """A file whose variables have no values yet, and take no space."""
        content = io.BytesIO()
        store = H5NetCDFStore.open(content, mode="w")
        # In place of xarray's `ArrayWriter`, one that writes nothing.
        writer = SimpleNamespace(add=lambda *_, **__: None)
        store.store(variables, attributes, frozenset(self.encoding), writer=writer)
        store.close()
        return content.getvalue()


# A file without values; the bytes between its arrays, none if some are in chunks, whose
# sizes differ; names of the arrays in the order of the file.
_Layout: TypeAlias = tuple[bytes, tuple[bytes, ...], tuple[str, ...]]


def _layout_of(empty: bytes, values: Mapping[str, np.ndarray]) -> _Layout:
    """The layout of a file without values, and of arrays that it is to have."""
    content = _with_values(empty, values)
    ends: dict[int, tuple[int, str]] = {}
    with h5py.File(content, "r") as file:
        for name, array in values.items():
            stored: Any = file[name]
            start = stored.id.get_offset()
            if start is None or stored.dtype != array.dtype:
                return empty, (), ()
            ends[start] = start + array.nbytes, name
    between, end, data = [], 0, content.getvalue()
    for start in sorted(ends):
        between.append(data[end:start])
        end, _ = ends[start]
    order = tuple(ends[start][1] for start in sorted(ends))
    return empty, (*between, data[end:]), order


def _with_values(empty: bytes, values: Mapping[str, np.ndarray]) -> io.BytesIO:
    """A file with values in its arrays."""
    # Chunks are compressed here, as HDF5 would do so for one thread at a time.
    content = io.BytesIO(empty)
    with h5py.File(content, "r+") as file:
        for name, array in values.items():
            stored: Any = file[name]
            if stored.compression != "gzip" or stored.fletcher32:
                stored[...] = array
                continue
            shape = stored.chunks
            steps = [range(0, n, c) for n, c in zip(array.shape, shape, strict=True)]
            for start in itertools.product(*steps):
                index = tuple(
                    slice(i, i + c) for i, c in zip(start, shape, strict=True)
                )
                chunk = np.zeros(shape, stored.dtype)
                chunk[tuple(map(slice, array[index].shape))] = array[index]
                data = chunk.reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize)
                data = data.T if stored.shuffle else data
                packed = zlib.compress(data.tobytes(), stored.compression_opts)
                stored.id.write_direct_chunk(start, packed)
    return content
