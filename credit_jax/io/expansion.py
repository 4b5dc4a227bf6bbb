"""Compressed content that would expand far beyond the chunk that it stands for.

A few MB of a compressed chunk can expand to any size, which the metadata do not tell.
Libraries that decompress a chunk as a whole (numcodecs, HDF5) would take the memory, so
the content is judged before. `data.sources.stored_arrays` decodes to memory of the size
of the chunk.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Content that cannot expand beyond this is not looked at.
MAX_EXPANDED_BYTES = 2**32
# Of deflate: a block of 258 equal bytes takes two bits.
MAX_DEFLATE_RATIO = 1032
# Codecs whose content may expand to any size, and those whose content states a size
# below 4 GiB, which libraries allocate.
UNBOUNDED, STATED = ("bz2", "gzip", "lzma", "zlib", "zstd"), ("blosc", "lz4")
MEASURED = (*UNBOUNDED, *STATED)
# Bytes of checksums that a chunk may have before it is compressed.
SPARE = 64
# What comes last in a list of codecs.
LAST = (*MEASURED, "pcodec", "sharding_indexed", "zfpy")
CHECKSUMS = ("crc32c", "fletcher32")  # behind the content
_ABSENT = 2**64 - 1, 2**64 - 1  # place of a chunk that has the fill value
_BLOCK = 2**24  # bytes that are expanded at once
_ZLIB_OR_GZIP = 47  # `wbits` of zlib
_LZMA_MEMORY = 2**30
_ZSTD_FRAME, _ZSTD_BLOCK = b"\x28\xb5\x2f\xfd", 2**17
_ZSTD_HEADER = 18  # bytes of the longest one
_ZSTD_SKIPPED = range(0x184D2A50, 0x184D2A60)


def check_expansion(
    where: str, codec: str, content: bytes, most: int | None = None
) -> None:
    """Checks the size of compressed content, in bounded memory.

    Args:
        where: the chunk, for the error.
        codec: name of the codec, without the prefix "numcodecs.".
        content: bytes of the chunk; what is damaged is left to the codec.
        most: bytes that it may expand to; None is MAX_EXPANDED_BYTES.

    Raises:
        ValueError: it would expand to more.
    """
    most = MAX_EXPANDED_BYTES if most is None else most
    if codec in ("gzip", "zlib") and len(content) * MAX_DEFLATE_RATIO <= most:
        return
    measure = _MEASURES.get(codec)
    try:
        is_beyond = measure is not None and measure(content, most)
    except (EOFError, OSError, zlib.error):
        return
    except lzma.LZMAError as error:
        if "memory" not in str(error).lower():
            return
        is_beyond = True
    if is_beyond:
        raise ValueError(
            f"{where}: {len(content)} bytes of {codec} expand to more than {most}, "
            "which no chunk has; do not use it"
        )


def check_pipeline(where: str, codecs: Sequence[str]) -> None:
    """Checks that the size of content can be told from its compressor.

    Args:
        where: the array, for the error.
        codecs: names in the order of encoding.

    Raises:
        ValueError: there are several compressors, which together expand without bound,
            or other codecs behind one.
    """
    places = [n for n, name in enumerate(codecs) if name in LAST]
    behind = [c for n in places[:1] for c in codecs[n + 1 :] if c not in CHECKSUMS]
    if behind:
        raise ValueError(
            f"{where} has the codecs {', '.join(codecs)}, expected one compressor, as "
            "the last of them; write it again"
        )


def _inflated(content: bytes, most: int) -> bool:
    return _is_beyond(content, most, lambda: zlib.decompressobj(_ZLIB_OR_GZIP))


def _is_beyond(content: bytes, most: int, new: Callable[[], Any]) -> bool:
    """Expands stream after stream of the content, a block at a time."""
    total, left = 0, content
    while left:
        decoder: Any = new()
        while not decoder.eof:
            block = decoder.decompress(left, _BLOCK)
            total += len(block)
            # zlib hands back what it has not read yet; others keep it.
            left = getattr(decoder, "unconsumed_tail", b"")
            if total > most:
                return True
            if not (block or left):
                return False  # cut short
        left = decoder.unused_data
    return False


def _zstd(content: bytes, most: int) -> bool:
    """Adds up the sizes of frames, or of the largest content that blocks can have."""
    total, place = 0, 0
    while place + 5 <= len(content) and total <= most:
        magic = content[place : place + 4]
        if int.from_bytes(magic, "little") in _ZSTD_SKIPPED:
            place += 8 + int.from_bytes(content[place + 4 : place + 8], "little")
            continue
        if magic != _ZSTD_FRAME:
            break
        begin, size_bytes = _zstd_size(content[place + 4])
        has_checksum = bool(content[place + 4] & 4)
        stated = stated_bytes("zstd", content[place : place + _ZSTD_HEADER])
        blocks, place = _zstd_blocks(content, place + begin + size_bytes)
        place += 4 * has_checksum
        total += stated if size_bytes else blocks * _ZSTD_BLOCK
    return total > most


def _zstd_blocks(content: bytes, place: int) -> tuple[int, int]:
    """Counts the blocks of a frame; returns their number and the place behind them."""
    count, is_last = 0, False
    while not is_last and place + 3 <= len(content):
        header = int.from_bytes(content[place : place + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        place += 3 + (1 if kind == 1 else size)
        count += 1
    return count, place


def _zstd_size(descriptor: int) -> tuple[int, int]:
    """Offset and length of the size of the content in the header of a frame."""
    is_single = bool(descriptor & 32)
    begin = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    return begin, (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]


def stated_bytes(codec: str, header: bytes) -> int:
    """The size that the header of blosc, lz4 or zstd states; 0 if it states none."""
    if codec == "zstd":
        if len(header) < 5 or header[:4] != _ZSTD_FRAME:
            return 0
        begin, size = _zstd_size(header[4])
        stated = int.from_bytes(header[begin : begin + size], "little")
        return stated + 256 * (size == 2)
    part = header[4:8] if codec == "blosc" else header[:4]
    return int.from_bytes(part, "little") if len(part) == 4 else 0


_MEASURES: dict[str, Callable[[bytes, int], bool]] = {
    "zlib": _inflated,
    "gzip": _inflated,
    "bz2": lambda content, most: _is_beyond(content, most, bz2.BZ2Decompressor),
    "lzma": lambda content, most: _is_beyond(
        content, most, lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    ),
    "zstd": _zstd,
    "blosc": lambda content, most: stated_bytes("blosc", content) > most,
    "lz4": lambda content, most: stated_bytes("lz4", content) > most,
}


def inner_places(
    index: bytes, count: int, *, at_end: bool, checksum: bool
) -> Iterator[tuple[int, int]]:
    """Yields offset and length of the chunks of a shard that are there.

    Args:
        index: the bytes of the shard, or those of its index.
        count: number of chunks.
        at_end: whether the index is at the end of these bytes, otherwise at their
            begin.
        checksum: whether the index ends with a checksum.
    """
    size = index_bytes(count, checksum=checksum)
    index = (index[-size:] if at_end else index[:size]).ljust(size, b"\xff")
    for place in range(0, 16 * count, 16):
        offset, length = struct.unpack_from("<QQ", index, place)
        if (offset, length) != _ABSENT:
            yield offset, length


def index_bytes(count: int, *, checksum: bool) -> int:
    """Bytes of the index of a shard of some chunks."""
    return 16 * count + 4 * checksum
