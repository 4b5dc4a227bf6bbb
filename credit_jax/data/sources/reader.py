"""A thread-safe reader of NetCDF and Zarr files with a cache of fields."""

import collections
import dataclasses
import functools
import math
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.config import not_available
from credit_jax.data.calendars import calendar_of, near_times, to_labels
from credit_jax.data.sources.stored_arrays import StoredArray
from credit_jax.data.sources.stored_files import open_hdf5_array, open_zarr_array
from credit_jax.io.buffers import BUFFERS
from credit_jax.io.open_files import MAX_OPEN, OpenFiles
from credit_jax.io.retry import is_transient, retried
from credit_jax.named_fields.axes import horizontal

# Size of the cache of fields, with which small data sets are read only once.
CACHE_BYTES = 2**30
# Largest share of the cache that one read of a chunk may fill.
_AT_ONCE = 1 / 64
# Attributes that name the arrays (level,) of scale and offset of a variable, which CF
# has for all levels alone.
SCALE_OF_LEVELS, OFFSET_OF_LEVELS = "scale_factor_of_levels", "add_offset_of_levels"
# Errors of storage and decoders for chunks that are truncated, damaged or missing.
UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, EOFError, zlib.error)


@dataclasses.dataclass(frozen=True)
class OpenFile:
    """A file with its metadata; fields are read on access."""

    path: str  # path or URL of the file
    dataset: xr.Dataset  # xarray's data set, whose arrays are read lazily
    times: pd.Index | None  # (time,) labels, or None without a time dim
    calendar: str  # calendar of the times
    time_coord: str  # name of the time dim
    # 1-D coordinate variables, degrees; or None.
    latitude: xr.DataArray | None
    longitude: xr.DataArray | None
    # Direct readers of variables of a local store or file, by name; None for variables
    # that xarray reads.
    arrays: dict[str, StoredArray | None] = dataclasses.field(default_factory=dict)
    # What is read of variables, by name and rows, see `FileVariable.part`.
    parts: dict[Any, Any] = dataclasses.field(default_factory=dict)
    _indices: dict[np.datetime64, int] = dataclasses.field(default_factory=dict)

    def variable(self, name: str) -> xr.Variable:
        """Returns a variable, without reading it."""
        if name in self.dataset.data_vars:
            return self.dataset.variables[name]
        raise not_available(f"{self.path}: variable", name, self.dataset.data_vars)

    def read(
        self,
        name: str,
        chosen: Mapping[str, Any],
        index: int | None,  # of the requested time, for the error
        out: Float[np.ndarray, "..."],
    ) -> None:
        """Reads slices or indices, by dim, of a variable to `out` with its dims."""
        try:
            read = functools.partial(self._read, name, chosen, out)
            retried(read, f"{self.path}: variable {name!r}")
        except UNREADABLE as error:
            if is_transient(error.__cause__ or error):
                raise
            when = f" at {self.times[index]}" if self.times is not None else ""
            raise ValueError(
                f"{self.path}: variable {name!r}{when if index is not None else ''} "
                f"cannot be read ({type(error).__name__}: {error}); the file is "
                "damaged or incomplete: make it again"
            ) from error

    def _read(self, name: str, chosen: Mapping[str, Any], out: np.ndarray) -> None:
        variable, array = self.variable(name), self.stored(name)
        if array is None:
            out[...] = variable.isel(chosen).values
        else:
            array.read([chosen[str(dim)] for dim in variable.dims], out)
        if SCALE_OF_LEVELS not in variable.attrs:
            return
        for attribute, combine in (
            (SCALE_OF_LEVELS, np.multiply),
            (OFFSET_OF_LEVELS, np.add),
        ):
            factor = self.variable(variable.attrs[attribute])
            (dim,) = factor.dims
            ordered = [-1 if d == dim else 1 for d in variable.dims]
            factor = factor.isel({dim: chosen[str(dim)]}).values
            combine(out, factor.reshape(ordered), out=out)

    def stored(self, name: str) -> StoredArray | None:
        """The direct reader of a variable; None if xarray reads it."""
        if name not in self.arrays:
            variable = self.variable(name)
            self.arrays[name] = open_zarr_array(
                self.path, name, variable
            ) or open_hdf5_array(self.path, name, variable, self.arrays)
        return self.arrays[name]

    def time_index(self, label: np.datetime64) -> int:
        assert self.times is not None
        index = self._indices.get(label)
        if index is None:
            (index,) = self.time_indices(np.array([label])).tolist()
            self._indices[label] = index
        if index < 0:
            raise ValueError(
                f"{self.path}: no time {str(label)[:19]}; it has {len(self.times)} "
                f"times from {self.times[0]} to {self.times[-1]}"
            )
        return index

    def time_indices(self, labels: np.ndarray) -> np.ndarray:
        """Positions of times, -1 for those that are missing; see `near_times`."""
        assert self.times is not None
        return near_times(labels, self.times.to_numpy(), self.path)


class Reader:
    """A cache of open files and recently read fields, for the threads of a loader."""

    def __init__(
        self,
        time_coord: str,
        engine: str | None,
        cache_bytes: int | None = None,
        open_files: OpenFiles | None = None,
        num_fields: int | None = None,  # at one time, the last ones, not cache_bytes
    ) -> None:
        self._time_coord = time_coord
        self._engine = engine
        self._open_files = open_files or OpenFiles()
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[str, OpenFile] = collections.OrderedDict()
        self._fields: collections.OrderedDict[tuple, Future[np.ndarray]]
        self._fields = collections.OrderedDict()
        self._taken: dict[tuple, int] = {}
        self._cache_bytes = CACHE_BYTES if cache_bytes is None else cache_bytes
        # Bytes, or fields.
        self._left = self._cache_bytes if num_fields is None else num_fields
        self._at_once = self._left if num_fields else self._left * _AT_ONCE
        self._keeps_last = num_fields is not None

    def anew(self, num_fields: int | None = None) -> "Reader":
        """Returns a reader of the same files with an empty cache of fields."""
        options = self._engine, self._cache_bytes, self._open_files
        return Reader(self._time_coord, *options, num_fields)

    def open(self, path: str) -> OpenFile:
        """Opens a file, or returns it from the cache."""
        with self._lock:
            if path not in self._files:
                dataset = self._open_files.dataset(path, self._engine)
                times, calendar, name = None, "standard", self._time_coord
                if name in dataset.dims and name in dataset.coords:
                    decoded = dataset[name].values
                    calendar = calendar_of(decoded, path)
                    times = pd.DatetimeIndex(to_labels(decoded, path))
                    # Each occurs once.
                    near_times(times.to_numpy()[:0], times.to_numpy(), path)
                axes = horizontal(dataset, path)
                opened = OpenFile(path, dataset, times, calendar, name, *axes)
                self._files[path] = opened
            self._files.move_to_end(path)
            while len(self._files) > MAX_OPEN:
                self._files.popitem(last=False)
            return self._files[path]

    def chunk_times(self, opened: OpenFile, name: str, index: int) -> range:
        """Indices of the times that are decoded together with one time."""
        variable, array = opened.variable(name), opened.stored(name)
        dim = variable.dims.index(self._time_coord)
        chunks = variable.encoding.get("chunks") or variable.encoding.get("chunksizes")
        length, size = variable.shape[dim], chunks[dim] if chunks else 1
        is_decoded = array is None or array.is_compressed
        taken = size if self._keeps_last else size * variable.nbytes // length
        if not is_decoded or taken > self._at_once:
            # The chunk would fill too much of the cache.
            size = 1
        start = index - index % size
        return range(start, min(start + size, length))

    def field(
        self,
        key: tuple,  # the file, the variable, and the part of it
        times: range,  # indices of what is read together
        index: int,
        shape: tuple[int, ...],
        load: Callable[[range, np.ndarray], None],  # to (time, *shape)
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns a field at one time, from the cache or by reading it."""
        # The cache takes fields until it is full, so that small data sets are read once
        # and large ones not copied to it for nothing. Fields that are decoded together
        # displace the least recently used ones. Threads that ask for a field that
        # another one is reading wait for it.
        cached = key, times.start
        taken = len(times) * (1 if self._keeps_last else 4 * math.prod(shape))
        displaces = self._keeps_last or len(times) > 1
        with self._lock:
            held, is_new = self._fields.get(cached), False
            if held is not None:
                self._fields.move_to_end(cached)
            elif taken <= self._left or (displaces and taken <= self._at_once):
                held, is_new = self._fields.setdefault(cached, Future()), True
                self._taken[cached] = taken
                self._left -= taken
                while self._left < 0:
                    self._drop(next(iter(self._fields)))
        if held is None:
            out = BUFFERS.empty(shape, np.float32) if out is None else out
            load(range(index, index + 1), out[None])
            return out
        if is_new:
            try:
                fields = BUFFERS.empty((len(times), *shape), np.float32)
                load(times, fields)
            except BaseException as error:
                with self._lock:
                    if self._fields.get(cached) is held:
                        self._drop(cached)
                held.set_exception(error)
                raise
            fields.setflags(write=False)
            held.set_result(fields)
        field = held.result()[index - times.start]
        if out is None:
            return field
        out[...] = field
        return out

    def _drop(self, cached: tuple) -> None:
        del self._fields[cached]
        self._left += self._taken.pop(cached)
