"""Decoders of compressed chunks, which write to memory of the size of the chunk.

What a damaged chunk says of its size is checked before: the decoders of numcodecs may
otherwise leave a part of the memory as it was, or read beyond the chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np

_BLOCK = 2**18  # bytes that deflate reads or writes at once
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
    """Frames may leave out the size of what they hold, which must then be that of out.

    The header is that of RFC 8878, 3.1.1.1.
    """
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
    end, place, decoder = 0, 0, None
    while left or place < len(content):
        if not left:
            left = content[place : place + _BLOCK]
            place += len(left)
        decoder = decoder or zlib.decompressobj(_ZLIB_OR_GZIP)
        while True:
            block = decoder.decompress(left, _BLOCK)
            left = decoder.unconsumed_tail
            if end + len(block) > out.nbytes:
                _check_stated(path, end + len(block), out)
            out[end : end + len(block)] = np.frombuffer(block, np.uint8)
            end += len(block)
            if len(block) < _BLOCK:
                break
        if decoder.eof:
            place -= len(decoder.unused_data)
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
