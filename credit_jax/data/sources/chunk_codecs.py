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

from credit_jax.io.expansion import check_expansion, stated_bytes

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
    header = content[:16].tobytes().ljust(16, b"\0")
    _check_stated(path, stated_bytes("blosc", header), out)
    size = int.from_bytes(header[12:16], "little")
    if size != len(content):
        raise ValueError(f"{path}: it has {len(content)} bytes of {size}")
    numcodecs.blosc.decompress(content, out)


def _from_lz4(path: str, content: np.ndarray, out: np.ndarray) -> None:
    _check_stated(path, stated_bytes("lz4", content[:8].tobytes()), out)
    numcodecs.lz4.decompress(content, out)


def _from_zstd(path: str, content: np.ndarray, out: np.ndarray) -> None:
    """Frames may leave out the size of what they hold."""
    stated = stated_bytes("zstd", content[:18].tobytes())
    if stated:
        _check_stated(path, stated, out)
        numcodecs.zstd.decompress(content, out)
        return
    check_expansion(path, "zstd", content.tobytes(), out.nbytes)
    values = np.frombuffer(numcodecs.zstd.decompress(content), np.uint8)
    _check_stated(path, len(values), out)
    out[...] = values


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
