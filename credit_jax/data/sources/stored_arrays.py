"""Variables of local NetCDF-4 files and Zarr stores, read directly, with a single copy.

h5py: h5netcdf looks up the sizes of all dims at each read, which takes several times as
long as reading a small field. TensorStore's C++ threads: Zarr's own Python reader needs
more than twice the processor time for the same bytes, and keeps the GIL between chunks.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import h5py
import numpy as np
import tensorstore
import xarray as xr
from jaxtyping import Shaped
from xarray.backends import CachingFileManager
from xarray.backends.locks import HDF5_LOCK

from credit_jax.io.buffers import BUFFERS
from credit_jax.io.expansion import SPARE, index_bytes, inner_places, stated_bytes
from credit_jax.io.missing_chunks import Chunks, has_no_fill_value, index_of

# Attributes with which xarray decodes values.
_DECODED = ("scale_factor", "add_offset", "_Unsigned", "missing_value")


def is_plain(variable: xr.Variable) -> bool:
    """Whether a variable is stored as floats that xarray does not need to decode."""
    encoding: Mapping[str, Any] = variable.encoding
    stored = np.dtype(encoding.get("dtype", variable.dtype))
    fill = encoding.get("_FillValue")
    undecoded = fill is None or bool(np.isnan(fill))
    return (
        stored == variable.dtype
        and stored in (np.float32, np.float64)
        and undecoded
        and not any(key in encoding for key in _DECODED)
    )


class Hdf5Array:
    """A variable of a file; reads are thread-safe.

    Args:
        file: xarray's manager of the file, which reopens it if xarray, which keeps 128
            files open, has closed it.
        name: name of the variable.
    """

    def __init__(self, file: CachingFileManager, name: str) -> None:
        self._file = file
        self._name = name
        self._chunks: Chunks | None = None

    def __getitem__(self, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
        """Reads values by outer indexing: a slice or a list of indices for each dim.

        Raises:
            OSError: a chunk is damaged.
            ValueError: a chunk was never written, and has no value.
        """
        # Any read through xarray may close a file; xarray takes this lock, too.
        with HDF5_LOCK:
            dataset = self._file.acquire(needs_lock=False)[self._name]
            if self._chunks is None:
                self._chunks = Chunks(dataset)
            self._chunks.check(dataset, index)
            return _read(dataset, index)


def _read(dataset: h5py.Dataset, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
    sizes = zip(dataset.shape, index, strict=True)
    positions = [
        np.arange(*indices.indices(size))
        if isinstance(indices, slice)
        else np.arange(size)[indices]
        for size, indices in sizes
    ]
    stored = _readable([np.unique(indices) for indices in positions])
    shape = tuple(map(len, stored))
    out = BUFFERS.empty(shape, dataset.dtype)
    if out.size:
        dataset.read_direct(out, tuple(map(_selection, stored)))
    for dim, (indices, read) in enumerate(zip(positions, stored, strict=True)):
        if not np.array_equal(indices, read):
            out = np.take(out, np.searchsorted(read, indices), dim)
    return out


def open_hdf5_array(
    file: str, name: str, variable: xr.Variable, owner: object
) -> Hdf5Array | None:
    """Opens a variable of a file; None if xarray has to read it.

    Args:
        file: path of the file.
        name: name of the variable.
        variable: xarray's variable; xarray reads those that need decoding.
        owner: an object that lives as long as the array; arrays with the same owner
            share an open file.
    """
    if not (os.path.isfile(file) and h5py.is_hdf5(file) and is_plain(variable)):
        return None
    manager = CachingFileManager(h5py.File, file, mode="r", manager_id=id(owner))
    with HDF5_LOCK:
        stored = manager.acquire(needs_lock=False).get(name)
        if not isinstance(stored, h5py.Dataset):
            return None
        # A variable may be shorter than the unlimited dim that it is along.
        same = stored.shape == variable.shape and stored.dtype == variable.dtype
    return Hdf5Array(manager, name) if same else None


def _readable(positions: list[np.ndarray]) -> list[np.ndarray]:
    """Indices to read: h5py accepts a list for one dim; others become ranges."""
    lists = [dim for dim, indices in enumerate(positions) if not _is_regular(indices)]
    widened = {
        dim: np.arange(positions[dim][0], positions[dim][-1] + 1) for dim in lists[1:]
    }
    return [widened.get(dim, indices) for dim, indices in enumerate(positions)]


def _selection(positions: np.ndarray) -> slice | list[int]:
    """Increasing indices for h5py, as a slice if possible, which is much faster."""
    if not _is_regular(positions):
        return positions.tolist()
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    return slice(int(positions[0]), int(positions[-1]) + 1, step)


def _is_regular(positions: np.ndarray) -> bool:
    return len(np.unique(np.diff(positions))) <= 1


class ZarrArray:
    """A variable of a store; reads are thread-safe.

    Args:
        path: folder of the array.
        driver: TensorStore driver, "zarr" or "zarr3". Chunks that are not there have
            the fill value; in a v2 array that has none they are an error.

    Raises:
        ValueError: TensorStore cannot read the array, such as with filters of other
            packages.
    """

    def __init__(self, path: str, driver: str) -> None:
        spec: dict[str, Any]
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": path}}
        name = ".zarray" if driver == "zarr" else "zarr.json"
        with open(os.path.join(path, name), encoding="utf-8") as file:
            metadata = file.read()
        if driver == "zarr":
            spec["fill_missing_data_reads"] = not has_no_fill_value(metadata)
        self._array = tensorstore.open(spec, read=True, open=True).result()
        self._blosc = _BloscChunks.of(path, json.loads(metadata), self._array)

    def __getitem__(self, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
        """Reads values by outer indexing: a slice or a list of indices for each dim.

        Raises:
            ValueError: a chunk is damaged.
        """
        if self._blosc is not None:
            self._blosc.check(index)
        part = self._array.oindex[index].translate_to[0]
        out = BUFFERS.empty(part.shape, part.dtype.numpy_dtype)
        tensorstore.array(out, copy=False).write(part).result()
        return out


class _BloscChunks:
    """Chunks that blosc compresses: TensorStore allocates what their headers state.

    A few KB may state 2 GiB, of as many chunks at once as there are cores. Each header
    is read once, before its chunk.

    Args:
        path: folder of the array.
        array: the array.
        prefix: beginning of the names of chunks.
        separator: text between the numbers in the names of chunks.
        shard: configuration of shards; None without them.
    """

    def __init__(
        self,
        path: str,
        array: tensorstore.TensorStore,
        prefix: str,
        separator: str,
        shard: Mapping[str, Any] | None = None,
    ) -> None:
        self._path, self._prefix, self._separator = path, prefix, separator
        self._shape, self._shard = array.shape, shard
        layout = array.chunk_layout
        # Those of files; in shards the chunks that are compressed are smaller.
        self._chunk = [size or 1 for size in layout.write_chunk.shape or ()]
        inner = math.prod(size or 1 for size in layout.read_chunk.shape or ())
        self._num_inner = math.prod(self._chunk) // inner
        self._num_bytes = inner * array.dtype.numpy_dtype.itemsize
        self._checked: set[str] = set()

    @classmethod
    def of(
        cls, path: str, metadata: Mapping[str, Any], array: tensorstore.TensorStore
    ) -> "_BloscChunks | None":
        """Those of an array by its metadata; None without blosc."""
        codecs = metadata.get("codecs") or [metadata.get("compressor") or {}]
        shards = [
            codec["configuration"]
            for codec in codecs
            if codec.get("name") == "sharding_indexed"
        ]
        shard = shards[0] if shards else None
        codecs = codecs if shard is None else shard["codecs"]
        if not any("blosc" in (c.get("id"), c.get("name")) for c in codecs):
            return None
        encoding = metadata.get("chunk_key_encoding", {"name": "v2"})
        is_v2 = encoding["name"] == "v2"
        separator = metadata.get("dimension_separator", "." if is_v2 else "/")
        separator = encoding.get("configuration", {}).get("separator", separator)
        prefix = "" if is_v2 else f"c{separator}"
        return cls(path, array, prefix, separator, shard)

    def check(self, index: Sequence[Any]) -> None:
        """Checks the chunks of a selection.

        Raises:
            ValueError: one states more bytes than a chunk has.
        """
        dims = zip(index, self._shape, self._chunk, strict=True)
        for numbers in itertools.product(*(_chunk_numbers(*dim) for dim in dims)):
            name = self._prefix + self._separator.join(map(str, numbers))
            if name not in self._checked:
                self._check_chunk(name)
                self._checked.add(name)

    def _check_chunk(self, name: str) -> None:
        path = os.path.join(self._path, name)
        if not os.path.isfile(path):
            return  # its fill value, or an error of TensorStore
        with open(path, "rb") as file:
            for place in self._places(file):
                file.seek(place)
                stated = stated_bytes("blosc", file.read(8))
                if stated > self._num_bytes + SPARE:
                    raise ValueError(
                        f"{path}: its content states {stated} bytes, where a chunk has "
                        f"{self._num_bytes}; it is damaged, do not use it"
                    )

    def _places(self, file: BinaryIO) -> list[int]:
        """Places of the compressed chunks of a file."""
        if self._shard is None:
            return [0]
        index = index_of(self._shard)
        size = index_bytes(self._num_inner, checksum=index["checksum"])
        if index["at_end"]:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        places = inner_places(file.read(size), self._num_inner, **index)
        return [start for start, _ in places if start < 2**63]


def _chunk_numbers(index: Any, length: int, chunk: int) -> range:
    """The numbers of the chunks along a dim, by a slice or a list of indices."""
    places = np.r_[index] if not isinstance(index, slice) else range(length)[index]
    if not len(places):
        return range(0)
    return range(int(min(places)) // chunk, int(max(places)) // chunk + 1)


def open_zarr_array(store: str, name: str, variable: xr.Variable) -> ZarrArray | None:
    """Opens a variable of a store; None if xarray has to read it.

    Args:
        store: path of the store.
        name: name of the variable.
        variable: xarray's variable; xarray reads those that need decoding.
    """
    path = os.path.join(store, name)
    driver = _driver(path)
    if driver is None or not is_plain(variable):
        return None
    try:
        return ZarrArray(path, driver)
    except ValueError:
        return None


def _driver(path: str) -> str | None:
    """TensorStore driver, by the metadata file of an array in a local folder."""
    if os.path.exists(os.path.join(path, ".zarray")):
        return "zarr"
    metadata = os.path.join(path, "zarr.json")
    if os.path.exists(metadata):
        with open(metadata, encoding="utf-8") as file:
            return "zarr3" if json.load(file).get("node_type") == "array" else None
    return None
