"""Variables of local Zarr stores and NetCDF-4 files, read straight into a destination.

The kernel copies what is not compressed from its page cache to the destination, and the
decoders of numcodecs write there, too. Nothing else touches the values, no lock is held
meanwhile, and Python's is released. Libraries of the formats copy once or twice more:
HDF5 under one lock for all files, TensorStore and Zarr to new memory, whose pages the
kernel has to clear first.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numcodecs
import numpy as np
import xarray as xr
from jaxtyping import Float

# A slice or positions for each dim.
Index: TypeAlias = Sequence[Any]

# Fewer neighboring bytes are not worth a place of their own in a list for the kernel.
_RUN = 2**14
_IOV_MAX = 1024
# Bytes that are converted at once, which stay in the cache of the processor.
_BLOCK = 2**20
# Bytes of headers and checksums, beyond a 64th of the content.
_SPARE = 2**12
# xarray's encodings that say how values are stored, of which those of `StoredArray` are
# known here.
_ENCODINGS = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned")


class Chunk(NamedTuple):
    """The bytes of a chunk."""

    path: str  # its file
    start: int  # offset in the file
    size: int  # number of bytes
    # What was done to the values, in the order of writing: "shuffle", then a name of
    # `chunk_codecs.DECODERS`.
    codecs: tuple[str, ...] = ()


class StoredArray:
    """A variable whose values are read from the chunks of files; thread-safe."""

    def __init__(
        self,
        variable: xr.Variable,
        dtype: np.dtype,
        chunks: Sequence[int],
        find: Callable[[tuple[int, ...]], Chunk | None],  # None: it is fill
        fill: Any,  # as stored
        *,
        is_compressed: bool,  # a chunk is decoded as a whole, even for one value
    ) -> None:
        self.is_compressed = is_compressed
        encoding = variable.encoding
        marks = (encoding.get(name) for name in _ENCODINGS[:2])
        self._marks = [m for m in marks if m is not None and not np.isnan(m)]
        self._scale, self._offset = (encoding.get(name) for name in _ENCODINGS[2:4])
        self._decoded = variable.dtype
        is_coded = self._marks or self._scale is not None or self._offset is not None
        self._is_plain = not is_coded
        self._is_copied = self._is_plain and dtype == np.float32 and dtype.isnative
        self._shape, self._dtype, self._chunks = variable.shape, dtype, tuple(chunks)
        self._nbytes = math.prod(chunks) * dtype.itemsize
        self._find, self._fill = find, fill

    def read(self, index: Index, out: Float[np.ndarray, ...]) -> None:
        """Reads values by outer indexing, to a destination of any strides."""
        dims = zip(index, self._shape, self._chunks, strict=True)
        for parts in itertools.product(*(_parts(*dim) for dim in dims)):
            numbers, inside, outside = zip(*parts, strict=True)
            self._read_chunk(numbers, inside, out[outside])

    def _read_chunk(
        self, numbers: tuple[int, ...], inside: tuple[Any, ...], out: np.ndarray
    ) -> None:
        chunk = self._find(numbers)
        if chunk is None:
            self._decode(np.array(self._fill, self._dtype), out)
            return
        file = os.open(chunk.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if chunk.codecs:
                self._decompress(file, chunk, inside, out)
            elif chunk.size != self._nbytes:
                raise ValueError(
                    f"{chunk.path}: a chunk has {chunk.size} bytes, expected "
                    f"{self._nbytes}"
                )
            elif not (self._is_copied and self._copied(file, chunk, inside, out)):
                first = self._first_of_plane(inside)
                rows, others = inside[first], self._chunks[first + 1 :]
                indices = np.arange(self._chunks[first])[rows]
                begin, end = int(indices.min()), int(indices.max()) + 1
                plane = _scratch("raw", (end - begin, *others), self._dtype)
                read = (
                    *inside[:first],
                    slice(begin, end),
                    *(slice(0, n) for n in others),
                )
                is_slice = isinstance(rows, slice)
                rows = slice(None, None, rows.step) if is_slice else rows - begin
                for index, start in self._offsets(read, first, out.shape):
                    read_into(file, chunk, start, [plane])
                    self._decode(
                        _taken(plane, (rows, *inside[first + 1 :])), out[index]
                    )
        finally:
            os.close(file)

    def _copied(
        self, file: int, chunk: Chunk, inside: tuple[Any, ...], out: np.ndarray
    ) -> bool:
        """Reads to the destination itself; False if its pieces are too short."""
        run, first = self._dtype.itemsize, out.ndim
        for dim in reversed(range(out.ndim)):
            size = out.shape[dim]
            if not _is_range(inside[dim]) or (size > 1 and out.strides[dim] != run):
                break
            run, first = run * size, dim
            if size != self._chunks[dim]:
                break
        if run < _RUN and first:
            return False
        views: list[np.ndarray] = []
        begin = end = 0
        for index, start in self._offsets(inside, first, out.shape):
            if views and (start != end or len(views) == _IOV_MAX):
                read_into(file, chunk, begin, views)
                views = []
            begin = begin if views else start
            end = start + run
            views.append(out[index])
        read_into(file, chunk, begin, views)
        return True

    def _offsets(
        self, inside: tuple[Any, ...], first: int, shape: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields the indices of leading dims, and the offset of the values there."""
        strides = [
            self._dtype.itemsize * math.prod(self._chunks[dim + 1 :])
            for dim in range(len(self._chunks))
        ]
        offsets = [
            np.arange(size)[part] * stride
            for size, part, stride in zip(self._chunks, inside, strides, strict=True)
        ]
        behind = sum(int(offset[0]) for offset in offsets[first:])
        for index in np.ndindex(shape[:first]):
            leading = zip(offsets, index, strict=False)
            yield index, behind + sum(int(offset[n]) for offset, n in leading)

    def _first_of_plane(self, inside: tuple[Any, ...]) -> int:
        """The first dim of what is converted at once, in the cache of the processor."""
        # These are rows, where they are neighbors, and as many planes as fit. Of values
        # that are not neighbors, those between them are not read.
        first = max(0, len(inside) - 2)
        if not _is_dense(inside[first]):
            return len(inside) - 1
        num_bytes = math.prod(self._chunks[first:]) * self._dtype.itemsize
        while first and _is_dense(inside[first - 1]):
            dim = inside[first]
            num_bytes *= len(range(self._chunks[first - 1])[inside[first - 1]])
            if (
                num_bytes > _BLOCK
                or len(range(self._chunks[first])[dim]) != (self._chunks[first])
            ):
                break
            first -= 1
        return first

    def _decompress(
        self, file: int, chunk: Chunk, inside: tuple[Any, ...], out: np.ndarray
    ) -> None:
        most = self._nbytes + self._nbytes // 64 + _SPARE
        if chunk.size > most:
            raise ValueError(
                f"{chunk.path}: a chunk has {chunk.size} bytes, compressed, for values "
                f"of {self._nbytes}"
            )
        content = _scratch("content", (chunk.size,))
        read_into(file, chunk, 0, [content])
        is_whole = out.shape == self._chunks and all(map(_is_range, inside))
        to_out = self._is_copied and is_whole and out.flags.c_contiguous
        raw = out if to_out else _scratch("raw", self._chunks, self._dtype)
        values = flat = raw.reshape(-1).view(np.uint8)
        if chunk.codecs[0] == "shuffle":
            values = _scratch("shuffled", flat.shape)
        if chunk.codecs[-1] == "shuffle":
            values[...] = content
        else:
            DECODERS[chunk.codecs[-1]](chunk.path, content, values)
        if values is not flat:
            size = self._dtype.itemsize
            flat.reshape(-1, size)[...] = values.reshape(size, -1).T
        if to_out:
            return
        first = self._first_of_plane(inside)
        leading = [np.arange(raw.shape[d])[inside[d]] for d in range(first)]
        for index in np.ndindex(out.shape[:first]):
            plane = raw[tuple(int(p[n]) for p, n in zip(leading, index, strict=True))]
            self._decode(_taken(plane, inside[first:]), out[index])

    def _decode(self, raw: np.ndarray, out: np.ndarray) -> None:
        """Writes values as xarray decodes them, in the dtype that it does it in."""
        if self._is_plain:
            out[...] = raw
            return
        to_out = self._decoded == out.dtype
        values = out if to_out else np.empty(raw.shape, self._decoded)
        values[...] = raw
        if self._scale is not None:
            values *= self._scale
        if self._offset is not None:
            values += self._offset
        for mark in self._marks:
            np.copyto(values, np.nan, where=raw == mark)
        if not to_out:
            out[...] = values


def _parts(index: Any, size: int, chunk: int) -> Iterator[tuple[int, Any, slice]]:
    """Yields the number of each chunk along a dim, what is read of it, and where to."""
    if isinstance(index, slice) and index.step in (None, 1):
        start, stop, _ = index.indices(size)
        for number in range(start // chunk, -(-stop // chunk) if stop > start else 0):
            origin = number * chunk
            first, last = max(start, origin), min(stop, origin + chunk)
            part = slice(first - origin, last - origin, 1)
            yield number, part, slice(first - start, last - start)
        return
    indices = np.arange(size)[index]
    if not indices.size:
        return
    numbers = indices // chunk
    ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(indices)]
    for begin, end in itertools.pairwise(ends):
        number = int(numbers[begin])
        part = indices[begin:end] - number * chunk
        first, steps = int(part[0]), np.diff(part)
        if len(part) == 1:
            steps = np.ones(1, int)
        if (steps == steps[0]).all() and steps[0]:
            stop = int(part[-1] + np.sign(steps[0]))
            part = slice(first, None if stop < 0 else stop, int(steps[0]))
        yield number, part, slice(begin, end)


def _is_dense(part: Any) -> bool:
    return isinstance(part, slice) and abs(part.step) == 1


def _is_range(part: Any) -> bool:
    return isinstance(part, slice) and part.step == 1


def _taken(plane: np.ndarray, parts: Sequence[Any]) -> np.ndarray:
    """A part of a plane by outer indexing."""
    for dim, part in enumerate(parts):
        plane = plane[(slice(None),) * dim + (part,)]
    return plane


_memory = threading.local()


def _scratch(
    name: str, shape: tuple[int, ...], dtype: Any = np.uint8
) -> Float[np.ndarray, ...]:
    """Memory of this thread, which the next array of this name uses again."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = getattr(_memory, name, None)
    if memory is None or memory.nbytes < size:
        memory = np.empty(size, np.uint8)
        setattr(_memory, name, memory)
    return memory[:size].view(dtype).reshape(shape)


def read_into(file: int, chunk: Chunk, start: int, views: Sequence[np.ndarray]) -> None:
    """Reads neighboring bytes of a chunk to arrays, one after the other."""
    arrays: Any = views
    left = [memoryview(view).cast("B") for view in arrays if view.size]
    index = chunk.start + start
    while left:
        count = os.preadv(file, left, index)
        if not count:
            raise ValueError(
                f"{chunk.path} ends at byte {index}, within a chunk of {chunk.size} "
                f"bytes from {chunk.start}"
            )
        index += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]


def is_readable(variable: xr.Variable, shape: Sequence[int], dtype: np.dtype) -> bool:
    """Whether values of a variable are numbers, and decoded as `StoredArray` does."""
    encoding = variable.encoding
    coded = [name for name in _ENCODINGS if encoding.get(name) is not None]
    native = dtype.newbyteorder("=")
    decoded = variable.dtype.kind == "f" if coded else variable.dtype == native
    return (
        tuple(shape) == variable.shape != ()
        and dtype.kind in "iufb"
        and decoded
        and all(np.ndim(encoding[name]) == 0 for name in coded)
        and "_Unsigned" not in coded
        and not isinstance(encoding.get("_FillValue"), str | bytes)
    )


_PIECE = 2**18  # bytes that deflate reads or writes at once
_ZLIB_OR_GZIP = 47  # `wbits` of zlib


def _check_stated(path: str, stated: int, out: np.ndarray) -> None:
    if stated != out.nbytes:
        raise ValueError(
            f"{path}: its content states {stated} bytes, where a chunk has "
            f"{out.nbytes}; it is damaged, do not use it"
        )


def _from_blosc(path: str, content: np.ndarray, out: np.ndarray) -> None:
    """Blosc reads as many bytes as its header says, whatever there are."""
    header = np.frombuffer(content[:16].tobytes().ljust(16, b"\0"), "<u4")
    _check_stated(path, int(header[1]), out)
    if header[3] != len(content):
        raise ValueError(f"{path}: it has {len(content)} bytes of {header[3]}")
    numcodecs.blosc.decompress(content, out)


def _from_lz4(path: str, content: np.ndarray, out: np.ndarray) -> None:
    _check_stated(path, int.from_bytes(content[:4].tobytes(), "little"), out)
    numcodecs.lz4.decompress(content, out)


def _from_zstd(path: str, content: np.ndarray, out: np.ndarray) -> None:
    """Decodes Zstandard to `out`, whose size frames must have if they state it."""
    # RFC 8878, 3.1.1.1.
    header = content[:18].tobytes().ljust(18, b"\0")
    has_window = not header[4] & 32
    size = (int(not has_window), 2, 4, 8)[header[4] >> 6]
    begin = 5 + has_window + (0, 1, 2, 4)[header[4] & 3]
    if size:
        stated = int.from_bytes(header[begin : begin + size], "little")
        _check_stated(path, stated + 256 * (size == 2), out)
    numcodecs.zstd.decompress(content, out)


def _from_zlib(path: str, content: np.ndarray, out: np.ndarray) -> None:
    """Expands a block at a time, stream after stream, up to the size of a chunk."""
    left: Any = b""
    end, index, decoder = 0, 0, None
    while left or index < len(content):
        if not left:
            left = content[index : index + _PIECE]
            index += len(left)
        decoder = decoder or zlib.decompressobj(_ZLIB_OR_GZIP)
        while True:
            block = decoder.decompress(left, _PIECE)
            left = decoder.unconsumed_tail
            if end + len(block) > out.nbytes:
                _check_stated(path, end + len(block), out)
            out[end : end + len(block)] = np.frombuffer(block, np.uint8)
            end += len(block)
            if len(block) < _PIECE:
                break
        if decoder.eof:
            index -= len(decoder.unused_data)
            left, decoder = b"", None
    if decoder is not None:
        raise ValueError(f"{path}: a stream of deflate is cut, or not the last")
    _check_stated(path, end, out)


# Name -> writes the bytes of a chunk (path for errors, content, out).
DECODERS: dict[str, Callable[[str, np.ndarray, np.ndarray], None]] = {
    "blosc": _from_blosc,
    "lz4": _from_lz4,
    "zstd": _from_zstd,
    "zlib": _from_zlib,
    "gzip": _from_zlib,
}
