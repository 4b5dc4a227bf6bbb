"""Finds the chunks of variables in local Zarr stores and NetCDF-4 files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numcodecs
import numpy as np
import xarray as xr
from h5py import h5d, h5z  # pyright: ignore
from xarray.backends import CachingFileManager
from xarray.backends.locks import HDF5_LOCK

from credit_jax.data.sources import stored_arrays
from credit_jax.data.sources.stored_arrays import Chunk, StoredArray, read_into
from credit_jax.io.missing_chunks import masks_unwritten, missing_chunk, never_written

_ABSENT = 2**64 - 1


def open_hdf5_array(
    file: str, name: str, variable: xr.Variable, owner: object
) -> StoredArray | None:
    """Opens a variable of a file; None if xarray has to read it."""
    if not (os.path.isfile(file) and h5py.is_hdf5(file)):
        return None
    # xarray, which keeps 128 files open, may close the file at any read.
    # Arrays with the same owner, which lives as long as they do, share an open file.
    manager = CachingFileManager(h5py.File, file, mode="r", manager_id=id(owner))
    with HDF5_LOCK:
        handle = manager.acquire(needs_lock=False)
        stored = handle.get(name)
        # A variable may be shorter than the unlimited dim that it is along.
        if not (
            isinstance(stored, h5py.Dataset)
            and not handle.userblock_size
            and not stored.external
            and stored_arrays.is_readable(variable, stored.shape, stored.dtype)
        ):
            return None
        properties, dtype = stored.id.get_create_plist(), stored.dtype
        codecs = tuple(
            _FILTERS.get(properties.get_filter(n)[0], "")
            for n in range(properties.get_nfilters())
        )
        layout, chunks = properties.get_layout(), stored.chunks or stored.shape
        if layout not in (h5d.CHUNKED, h5d.CONTIGUOUS) or codecs not in _PIPELINES:
            return None
        fill = stored.fillvalue if masks_unwritten(stored) else None
        located: dict[tuple[int, ...], Chunk | None] = {}
        if layout == h5d.CONTIGUOUS:
            start, size = stored.id.get_offset(), stored.id.get_storage_size()
            origin = (0,) * stored.ndim
            located[origin] = None if start is None else Chunk(file, start, size)

    def find(numbers: tuple[int, ...]) -> Chunk | None:
        if numbers not in located:
            pairs = zip(numbers, chunks, strict=True)
            offset = tuple(number * size for number, size in pairs)
            with HDF5_LOCK:
                dataset = manager.acquire(needs_lock=False)[name]
                info = dataset.id.get_chunk_info_by_coord(offset)
            # Bits of the mask are filters that were left out.
            left = (c for n, c in enumerate(codecs) if not info.filter_mask >> n & 1)
            index = info.byte_offset, info.size, tuple(left)
            located[numbers] = None if index[0] is None else Chunk(file, *index)
        if located[numbers] is None and fill is None:
            raise ValueError(never_written(numbers, f"/{name}"))
        return located[numbers]

    return StoredArray(variable, dtype, chunks, find, fill, is_compressed=bool(codecs))


_FILTERS = {h5z.FILTER_SHUFFLE: "shuffle", h5z.FILTER_DEFLATE: "zlib"}
_PIPELINES = ((), ("zlib",), ("shuffle",), ("shuffle", "zlib"))


def open_zarr_array(store: str, name: str, variable: xr.Variable) -> StoredArray | None:
    """Opens a variable of a local store; None if xarray has to read it."""
    path = os.path.join(store, name)
    if not any(os.path.exists(os.path.join(path, f)) for f in (".zarray", "zarr.json")):
        return None
    import zarr

    array = zarr.open_array(path, mode="r")
    metadata: Any = array.metadata
    dtype, shard = array.dtype, None
    if metadata.zarr_format == 2:
        chunks, codec = metadata.chunks, metadata.compressor
        names = () if codec is None else (codec.get_config()["id"],)
        if metadata.order != "C" or metadata.filters:
            return None
    else:
        chunks = getattr(metadata.chunk_grid, "chunk_shape", None)
        codecs = [codec.to_dict() for codec in metadata.codecs]
        if chunks is None:
            return None
        if codecs[0]["name"] == "sharding_indexed" and len(codecs) == 1:
            section = codecs[0]["configuration"]
            shard, codecs = _Shards(chunks, section), section["codecs"]
            chunks = section["chunk_shape"]
        endian = codecs[0].get("configuration", {}).get("endian", "little")
        dtype = dtype.newbyteorder("<" if endian == "little" else ">")
        if codecs[0]["name"] != "bytes" or (shard and not shard.is_readable):
            return None
        names = tuple(c["name"].removeprefix("numcodecs.") for c in codecs[1:])
    if names not in [(), *((name,) for name in stored_arrays.DECODERS)]:
        return None
    if not stored_arrays.is_readable(variable, array.shape, dtype):
        return None

    # See `CompleteStore`: those that are not packed.
    is_packed = not {"scale_factor", "add_offset"}.isdisjoint(variable.encoding)
    leaves_zeros_out = dtype.kind in "iub" and not is_packed

    def find(numbers: tuple[int, ...]) -> Chunk | None:
        outer = numbers if shard is None else shard.of(numbers)
        key = metadata.encode_chunk_key(outer)
        file = os.path.join(path, key)
        try:
            size = os.stat(file).st_size
        except FileNotFoundError:
            if metadata.fill_value is None and not leaves_zeros_out:
                raise ValueError(missing_chunk(f"{name}/{key}")) from None
            return None
        index = (0, size) if shard is None else shard.place(file, size, numbers)
        return None if index is None else Chunk(file, *index, names)

    fill = 0 if metadata.fill_value is None else metadata.fill_value
    return StoredArray(variable, dtype, chunks, find, fill, is_compressed=bool(names))


class _Shards:
    """Files of several chunks, with an index of them."""

    def __init__(self, shape: Sequence[int], section: Mapping[str, Any]) -> None:
        pairs = zip(shape, section["chunk_shape"], strict=True)
        self._counts = tuple(size // chunk for size, chunk in pairs)
        self._at_end = section["index_location"] == "end"
        first, *others = section["index_codecs"]
        self._has_checksum = bool(others)
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        others = [codec["name"] for codec in others]
        self.is_readable = first == little and others in ([], ["crc32c"])
        self._indices: dict[str, np.ndarray] = {}

    def of(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of the shard of a chunk."""
        pairs = zip(numbers, self._counts, strict=True)
        return tuple(number // count for number, count in pairs)

    def place(
        self, file: str, size: int, numbers: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """Offset and length of a chunk in its shard; None if it is not there."""
        if file not in self._indices:
            num_bytes = 16 * math.prod(self._counts)
            raw = np.empty(num_bytes + 4 * self._has_checksum, np.uint8)
            offset = max(0, size - raw.nbytes) if self._at_end else 0
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                read_into(handle, Chunk(file, offset, raw.nbytes), 0, [raw])
            finally:
                os.close(handle)
            if self._has_checksum:
                numcodecs.CRC32C(location="end").decode(raw)
            self._indices[file] = raw[:num_bytes].view("<u8").reshape(*self._counts, 2)
        pairs = zip(numbers, self._counts, strict=True)
        inner = tuple(number % count for number, count in pairs)
        start, length = map(int, self._indices[file][inner])
        if start == length == _ABSENT:
            return None
        if start + length > size:
            raise ValueError(f"{file}: it has {size} bytes, a chunk ends beyond them")
        return start, length
