"""Zarr stores and NetCDF-4 files whose values were all written, in plausible chunks.

Zarr, by the plain reading of the specifications: a chunk without a file has the fill
value of its array. Zarr v3 arrays always have one, and their writers leave out chunks
that hold nothing else. A v2 array whose `fill_value` is null has none: its missing
chunks are lost, and readers of Zarr return zeros or whatever is in memory. Version 3 of
zarr-python leaves chunks of zeros out there, too: in integers, as times and masks are,
a missing chunk is therefore zeros, unless they are packed.

NetCDF-4: HDF5 has no chunk for values that nobody wrote, and reads them as the fill
value of the data set: 0 if nobody chose one. Where that is also the attribute
`_FillValue`, they are missing values, as NaN is. Where it is not, they would be read as
numbers. HDF5 expands a compressed chunk to whatever it holds, whatever the size of the
chunk.
"""

from __future__ import annotations

import itertools
import json
import math
import posixpath
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5d, h5z  # pyright: ignore
from xarray.backends import H5NetCDFStore
from xarray.backends.h5netcdf_ import H5NetCDFArrayWrapper
from xarray.core.indexing import LazilyIndexedArray
from zarr.storage import WrapperStore

from credit_jax.io.expansion import (
    MAX_DEFLATE_RATIO,
    MAX_EXPANDED_BYTES,
    MEASURED,
    SPARE,
    STATED,
    check_expansion,
    inner_places,
)
from credit_jax.io.metadata import (
    METADATA_FILES,
    bytes_of_chunk,
    check_variables,
    check_zarr_bytes,
    codecs_of,
)

# Key of a chunk in its array, as "1.0.0" or "1/0/0", both within one folder or below.
_CHUNK = re.compile(r"(?P<array>.*?)/?(?P<chunk>\d+(?:[./]\d+)*)")
_METADATA = ".zarray"


class CompleteStore(WrapperStore):
    """A store that raises an error for chunks without a value, or of too many bytes.

    Args:
        store: store to read from.
    """

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        # Arrays whose metadata were read, by path, with a compressor that needs care.
        self._unbounded: dict[str, Content] = {}

    # Zarr 3.4 asks whether a store can be read without an event loop, by methods that
    # would not come by the checks below.
    _supports_sync_io = False

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """See `zarr.abc.store.Store.get`.

        Raises:
            ValueError: it is a chunk of a v2 array that is not there and has no fill
                value, a chunk that would expand to more than any data has, or metadata
                that ask for too much, see `metadata.check_file`.
        """
        value = await super().get(key, *args, **options)
        if value is not None and posixpath.basename(key) in METADATA_FILES:
            arrays = check_zarr_bytes(key, value.to_bytes())
            contents = {name: Content.of(name, node) for name, node in arrays.items()}
            self._unbounded |= {k: v for k, v in contents.items() if v is not None}
        elif value is not None and (content := self._content(key)) is not None:
            byte_range = args[1] if len(args) > 1 else options.get("byte_range")
            content.check(key, value.to_bytes(), is_part=byte_range is not None)
        if value is None and (match := _CHUNK.fullmatch(key)):
            prototype = args[0] if args else options.get("prototype")
            array = match["array"]
            while not await self._is_array(array, prototype) and "/" in array:
                array = posixpath.dirname(array)  # a chunk in folders, as "T/1/0/0"
            if await self._is_lossy(array, prototype):
                raise ValueError(missing_chunk(key))
        return value

    async def get_ranges(
        self, key: str, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """See `zarr.abc.store.Store.get_ranges`, of Zarr 3.4; reads parts of shards.

        Raises:
            ValueError: a chunk would expand to more than any data has.
        """
        content = self._content(key)
        ranges: Any = getattr(super(), "get_ranges")  # noqa: B009  Zarr 3.1 has none.
        async for group in ranges(key, *args, **options):
            for _, value in group:
                if content is not None and value is not None:
                    content.check(key, value.to_bytes(), is_part=True)
            yield group

    def _content(self, key: str) -> Content | None:
        """The content of the array that a key is a chunk of, if it has to be checked.

        "T/c/0/0", "T/0.0" and "T/0/0" are chunks of "T", "0.0" one of the root.
        """
        folder = key
        while self._unbounded and folder:
            folder = posixpath.dirname(folder)
            if (content := self._unbounded.get(folder or ".")) is not None:
                return content
        return None

    async def _is_array(self, array: str, prototype: Any) -> bool:
        return await self._metadata(array, prototype) is not None

    async def _is_lossy(self, array: str, prototype: Any) -> bool:
        content = await self._metadata(array, prototype)
        if content is None or not has_no_fill_value(content):
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


@dataclass(frozen=True)
class Content:
    """Compressed content of the chunks of an array.

    Attributes:
        codec: name of the compressor.
        shard: configuration of the codec of shards, whose chunks have the compressor;
            None without shards.
        chunks_per_shard: number of chunks.
        most: bytes that a chunk of blosc or lz4 may state; None if it is unknown.
    """

    codec: str
    shard: Mapping[str, Any] | None = None
    chunks_per_shard: int = 1
    most: int | None = None

    @classmethod
    def of(cls, name: str, node: Mapping[str, Any]) -> Content | None:
        """The content of an array by its checked metadata; None if it is bounded."""
        lists = codecs_of(name, node)
        names = [name.removeprefix("numcodecs.") for codecs in lists for name in codecs]
        compressors = [name for name in names if name in MEASURED]
        if not compressors:
            return None
        codec, most = compressors[0], None
        if codec in STATED and (size := bytes_of_chunk(name, node)) is not None:
            most = size + SPARE
        shards = [
            codec["configuration"]
            for codec in node.get("codecs") or ()
            if isinstance(codec, dict) and codec.get("name") == "sharding_indexed"
        ]
        if not shards:
            return cls(codec, most=most)
        whole = node["chunk_grid"]["configuration"]["chunk_shape"]
        inner = shards[0]["chunk_shape"]
        count = math.prod(whole) // math.prod(inner)
        return cls(codec, shards[0], count, most)

    def check(self, key: str, content: bytes, *, is_part: bool) -> None:
        """Checks the bytes of a chunk; see `expansion.check_expansion`.

        Args:
            key: key of the chunk in its store.
            content: bytes of the chunk.
            is_part: whether the bytes are a part of the file, as a chunk of a shard is.
        """
        chunks = [content]
        if self.shard is not None and not is_part:
            index = index_of(self.shard)
            places = inner_places(content, self.chunks_per_shard, **index)
            chunks = (content[start : start + size] for start, size in places)
        for chunk in chunks:
            check_expansion(f"the chunk {key}", self.codec, chunk, self.most)


def index_of(shard: Mapping[str, Any]) -> dict[str, bool]:
    """Where shards have their index, and whether it has a checksum.

    Args:
        shard: configuration of the codec.
    """
    names = [
        codec.get("name") if isinstance(codec, dict) else codec
        for codec in shard.get("index_codecs") or ()
    ]
    at_end = shard.get("index_location", "end") == "end"
    return {"at_end": at_end, "checksum": "crc32c" in names}


def has_no_fill_value(metadata: bytes | str) -> bool:
    """Whether the metadata `.zarray` of a v2 array have a null fill value."""
    content = json.loads(metadata)
    return isinstance(content, dict) and content.get("fill_value") is None


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
_SPARE = 2**12  # bytes of headers and checksums


class Chunks:
    """The chunks of a data set of HDF5: which were written, and how large they are.

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
        if not masks_unwritten(dataset):
            self._chunks_written = self._written(dataset)
        self._bytes = math.prod(self._chunks) * dataset.dtype.itemsize
        filters = _filters(dataset)
        self._is_deflated = h5z.FILTER_DEFLATE in filters
        # Whether the stored bytes are what deflate has made of a chunk.
        self._is_plain = self._is_deflated and {
            *filters[filters.index(h5z.FILTER_DEFLATE) + 1 :]
        } <= {h5z.FILTER_FLETCHER32}
        if filters.count(h5z.FILTER_DEFLATE) > 1:
            raise ValueError(
                f"{self._name} is compressed twice, and could expand without bound; "
                "write it again"
            )
        # Places of chunks whose content has been measured.
        self._measured: set[Chunk] = set()

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

    def check(self, dataset: h5py.Dataset, index: Sequence[Any]) -> None:
        """Checks that the values at an outer index were written, and can be read.

        Args:
            dataset: dataset of the file, which may have been opened again.
            index: an integer, a slice or indices for each dim.

        Raises:
            ValueError: some were not written, or would expand to more than any data.
        """
        if self._chunks_written is None and not self._is_deflated:
            return
        chunks = [
            _numbers(indices, size, end, chunk)
            for indices, size, end, chunk in zip(
                index, self._shape, self._stored, self._chunks, strict=True
            )
        ]
        for chunk in itertools.product(*chunks):
            if self._chunks_written is not None and chunk not in self._chunks_written:
                raise ValueError(never_written(chunk, self._name))
            if self._is_deflated and chunk not in self._measured:
                self._measure(dataset, chunk)

    def _measure(self, dataset: h5py.Dataset, chunk: Chunk) -> None:
        """Checks the size of a chunk; only large ones are looked at."""
        offset = tuple(n * size for n, size in zip(chunk, self._chunks, strict=True))
        if any(place >= end for place, end in zip(offset, self._stored, strict=True)):
            return  # past the end of the data set
        info = dataset.id.get_chunk_info_by_coord(offset)
        where = f"the chunk {'.'.join(map(str, chunk))} of {self._name}"
        if info.size > self._bytes + self._bytes // 64 + _SPARE:
            raise ValueError(
                f"{where} has {info.size} bytes, compressed, for values of "
                f"{self._bytes}; do not use it"
            )
        if info.size * MAX_DEFLATE_RATIO > MAX_EXPANDED_BYTES:
            mask, content = dataset.id.read_direct_chunk(offset)
            if not self._is_plain:
                raise ValueError(
                    f"{where} has {info.size} bytes, and a filter behind its "
                    "compressor: nothing tells its size; write it with smaller chunks"
                )
            if not mask:
                check_expansion(where, "zlib", content, self._bytes + _SPARE)
        self._measured.add(chunk)


def _numbers(indices: Any, size: int, end: int, chunk: int) -> list[int]:
    """Numbers of the chunks along a dim that an index touches.

    Args:
        indices: an integer, a slice or indices.
        size: size of the dim.
        end: size of the data set along it; it also stands for what is past it, as the
            last chunk has no values there either.
        chunk: number of values of a chunk along it.
    """
    if not isinstance(indices, slice):
        places = np.atleast_1d(np.arange(size)[indices])
        return np.unique(np.where(places < end, places // chunk, end)).tolist()
    places = range(size)[indices]
    if not places:
        return []
    first, last = sorted((places[0], places[-1]))
    past = [end] if last >= end else []
    inside, step = range(first, min(last + 1, end)), abs(places.step)
    if step > chunk or not inside:
        return [*dict.fromkeys(place // chunk for place in inside[::step]), *past]
    return [*range(inside[0] // chunk, inside[-1] // chunk + 1), *past]


def _filters(dataset: h5py.Dataset) -> list[int]:
    """HDF5's numbers of the filters of a data set, in the order of writing."""
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]


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
            self._checked.check(array._h5ds, key)
            return array[key]
