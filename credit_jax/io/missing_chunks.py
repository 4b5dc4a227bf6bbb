"""Zarr stores and NetCDF-4 files whose values were all written.

Zarr, by the plain reading of the specifications: a chunk without a file has the fill
value of its array. Zarr v3 arrays always have one, and their writers leave out chunks
that hold nothing else. A v2 array whose `fill_value` is null has none: its missing
chunks are lost, and readers of Zarr return zeros or whatever is in memory. Version 3 of
zarr-python leaves chunks of zeros out there, too: in integers, as times and masks are,
a missing chunk is therefore zeros, unless they are packed.

NetCDF-4: HDF5 has no chunk for values that nobody wrote, and reads them as the fill
value of the data set: 0 if nobody chose one. Where that is also the attribute
`_FillValue`, they are missing values, as NaN is. Where it is not, they would be read as
numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import posixpath
import re
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5d  # pyright: ignore
from xarray.backends import H5NetCDFStore
from xarray.backends.h5netcdf_ import H5NetCDFArrayWrapper
from xarray.core.indexing import LazilyIndexedArray
from zarr.storage import WrapperStore

from credit_jax.io.metadata import check_variables

# Key of a chunk in its array, as "1.0.0" or "1/0/0", both within one folder or below.
_CHUNK = re.compile(r"(?P<array>.*?)/?(?P<chunk>\d+(?:[./]\d+)*)")
_METADATA = ".zarray"


class CompleteStore(WrapperStore):
    """A store that raises an error for chunks without a value."""

    # Zarr 3.4 asks whether a store can be read without an event loop, by methods that
    # would not come by the check below.
    _supports_sync_io = False

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """See `zarr.abc.store.Store.get`."""
        value = await super().get(key, *args, **options)
        if value is None and (match := _CHUNK.fullmatch(key)):
            prototype = args[0] if args else options.get("prototype")
            array = match["array"]
            while "/" in array and await self._metadata(array, prototype) is None:
                array = posixpath.dirname(array)  # a chunk in folders, as "T/1/0/0"
            if await self._is_lossy(array, prototype):
                raise ValueError(missing_chunk(key))
        return value

    async def _is_lossy(self, array: str, prototype: Any) -> bool:
        content = await self._metadata(array, prototype)
        if content is None or json.loads(content)["fill_value"] is not None:
            return False
        attributes = await self._metadata(array, prototype, ".zattrs") or b"{}"
        is_packed = not {"scale_factor", "add_offset"}.isdisjoint(
            json.loads(attributes)
        )
        return is_packed or str(json.loads(content)["dtype"])[1:2] not in "iub"

    async def _metadata(
        self, array: str, prototype: Any, name: str = _METADATA
    ) -> bytes | None:
        key = f"{array}/{name}" if array else name
        metadata = await super().get(key, prototype)
        return None if metadata is None else metadata.to_bytes()


def missing_chunk(key: str) -> str:
    """The error for a chunk that is not there and has no value."""
    return (
        f"the chunk {key} is missing, and the array has no fill value (Zarr v2, "
        "fill_value null) that it could have; if it is one of zeros, write the array "
        "with write_empty_chunks or a fill value"
    )


def never_written(numbers: Sequence[int], name: str) -> str:
    """The error for a chunk of HDF5 that is not there and has no value."""
    return (
        f"the chunk {'.'.join(map(str, numbers))} of {name} was never written, and the "
        "variable has no _FillValue that it could have"
    )


Chunk = tuple[int, ...]


class Chunks:
    """The chunks of a data set of HDF5 that were written."""

    def __init__(
        self, dataset: h5py.Dataset, shape: Sequence[int] | None = None
    ) -> None:
        self._name = str(dataset.name)
        # A variable may be longer than its data set along unlimited dims.
        self._shape = tuple(dataset.shape if shape is None else shape)
        self._stored = dataset.shape
        self._chunks = tuple(dataset.chunks or dataset.shape)
        # None if no value is lost.
        self._chunks_written = self._written(dataset)

    def _written(self, dataset: h5py.Dataset) -> set[Chunk] | None:
        layout, full = dataset.id.get_create_plist().get_layout(), self._shape
        is_read = 0 not in full and layout in (h5d.CHUNKED, h5d.CONTIGUOUS)
        if not is_read or masks_unwritten(dataset):
            return None
        if layout == h5d.CONTIGUOUS:
            has_values = dataset.external or dataset.id.get_storage_size()
            return None if has_values else set()
        expected = math.prod(
            -(-size // chunk) for size, chunk in zip(full, self._chunks, strict=True)
        )
        if dataset.shape == full and dataset.id.get_num_chunks() == expected:
            return None
        chunks: set[Chunk] = set()

        def add(info: Any) -> None:
            pairs = zip(info.chunk_offset, self._chunks, strict=True)
            chunks.add(tuple(index // chunk for index, chunk in pairs))

        dataset.id.chunk_iter(add)
        return chunks

    def check(self, index: Sequence[Any]) -> None:
        """Checks that the values at an outer index were written."""
        if self._chunks_written is None:
            return
        chunks = [
            _numbers(indices, size, end, chunk)
            for indices, size, end, chunk in zip(
                index, self._shape, self._stored, self._chunks, strict=True
            )
        ]
        for chunk in itertools.product(*chunks):
            if chunk not in self._chunks_written:
                raise ValueError(never_written(chunk, self._name))


def _numbers(indices: Any, size: int, end: int, chunk: int) -> list[int]:
    """Numbers of the chunks along a dim that an index touches."""
    # `end` also stands for what is past it, as the last chunk has no values there.
    if not isinstance(indices, slice):
        positions = np.atleast_1d(np.arange(size)[indices])
        return np.unique(np.where(positions < end, positions // chunk, end)).tolist()
    positions = range(size)[indices]
    if not positions:
        return []
    first, last = sorted((positions[0], positions[-1]))
    past = [end] if last >= end else []
    inside, step = range(first, min(last + 1, end)), abs(positions.step)
    if step > chunk or not inside:
        return [*dict.fromkeys(index // chunk for index in inside[::step]), *past]
    return [*range(inside[0] // chunk, inside[-1] // chunk + 1), *past]


def masks_unwritten(dataset: h5py.Dataset) -> bool:
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
        # Before xarray decodes it, which may read it.
        check_variables(str(self._filename), {name: variable})
        data = LazilyIndexedArray(_WrittenArray(name, self))
        return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


class _WrittenArray(H5NetCDFArrayWrapper):
    _checked: Chunks | None = None

    def _getitem(self, key: tuple[Any, ...]) -> Any:
        with self.datastore.lock:
            array = self.get_array(needs_lock=False)
            if self._checked is None:
                self._checked = Chunks(array._h5ds, array.shape)
            self._checked.check(key)
            return array[key]
