"""NetCDF-4 files (HDF5) in which values that were never written are an error.

HDF5 has no chunk for values that nobody wrote, and reads them as the fill value of the
data set: 0 if nobody chose one. Where that is also the attribute `_FillValue`, they are
missing values, as NaN is. Where it is not, they would be read as numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5d  # pyright: ignore
from xarray.backends import H5NetCDFStore
from xarray.backends.h5netcdf_ import H5NetCDFArrayWrapper
from xarray.core.indexing import LazilyIndexedArray

Chunk = tuple[int, ...]


class Written:
    """The parts of a data set of HDF5 that were written.

    Args:
        dataset: dataset of an open file.
        shape: shape of the variable, which may be longer than its data set along
            unlimited dims; None if it is not.
    """

    def __init__(
        self, dataset: h5py.Dataset, shape: Sequence[int] | None = None
    ) -> None:
        self._name = str(dataset.name)
        self._shape = tuple(dataset.shape if shape is None else shape)
        self._stored = dataset.shape
        self._chunks = tuple(dataset.chunks or dataset.shape)
        # None if no value is lost.
        self._chunks_written: set[Chunk] | None = None
        if not _masks_unwritten(dataset):
            self._chunks_written = self._written(dataset)

    def _written(self, dataset: h5py.Dataset) -> set[Chunk] | None:
        layout, whole = dataset.id.get_create_plist().get_layout(), self._shape
        if 0 in whole or layout not in (h5d.CHUNKED, h5d.CONTIGUOUS):
            return None
        if layout == h5d.CONTIGUOUS:
            has_values = dataset.external or dataset.id.get_storage_size()
            return None if has_values else set()
        expected = math.prod(
            -(-size // chunk) for size, chunk in zip(whole, self._chunks, strict=True)
        )
        if dataset.shape == whole and dataset.id.get_num_chunks() == expected:
            return None
        chunks: set[Chunk] = set()
        dataset.id.chunk_iter(lambda info: chunks.add(self._of(info.chunk_offset)))
        return chunks

    def _of(self, offset: Sequence[int]) -> Chunk:
        pairs = zip(offset, self._chunks, strict=True)
        return tuple(place // chunk for place, chunk in pairs)

    def check(self, index: Sequence[Any]) -> None:
        """Checks that the values at an outer index were written.

        Args:
            index: an integer, a slice or indices for each dim.

        Raises:
            ValueError: some were not.
        """
        if self._chunks_written is None:
            return
        places = [
            np.atleast_1d(np.arange(size)[indices])
            for size, indices in zip(self._shape, index, strict=True)
        ]
        chunks = [
            # Past the end of the data set, the last chunk has no values either.
            np.unique(np.where(indices < end, indices // chunk, end)).tolist()
            for indices, end, chunk in zip(
                places, self._stored, self._chunks, strict=True
            )
        ]
        for chunk in itertools.product(*chunks):
            if chunk not in self._chunks_written:
                raise ValueError(
                    f"the chunk {'.'.join(map(str, chunk))} of {self._name} was never "
                    "written, and the variable has no _FillValue that it could have"
                )


def _masks_unwritten(dataset: h5py.Dataset) -> bool:
    """Whether values that were never written are read as missing ones."""
    mark = dataset.attrs.get("_FillValue")
    if mark is None or dataset.dtype.kind not in "iuf":
        return mark is not None
    fill = np.asarray([dataset.fillvalue], dataset.dtype)
    return np.array_equal(np.ravel(mark)[:1], fill, equal_nan=fill.dtype.kind == "f")


class WrittenStore(H5NetCDFStore):
    """A NetCDF-4 file for xarray, in which reading unwritten values is an error."""

    def open_store_variable(self, name: str, var: Any) -> xr.Variable:
        """See `xarray.backends.H5NetCDFStore`."""
        variable = super().open_store_variable(name, var)
        data = LazilyIndexedArray(_WrittenArray(name, self))
        return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


class _WrittenArray(H5NetCDFArrayWrapper):
    _written: Written | None = None

    def _getitem(self, key: tuple[Any, ...]) -> Any:
        with self.datastore.lock:
            array = self.get_array(needs_lock=False)
            if self._written is None:
                self._written = Written(array._h5ds, array.shape)
            self._written.check(key)
            return array[key]
