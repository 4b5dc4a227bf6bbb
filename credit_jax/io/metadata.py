"""Checks data files before arrays are read: what they are, and how large chunks are.

Files come from anywhere: their chunks may be larger than memory, their coordinates
longer, and their codecs may be code.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
from h5py import h5o  # pyright: ignore

# A chunk, and the values of a coordinate, are in memory as a whole. Blosc has no larger
# chunks; a coordinate of hourly times for 4,000 years is of this size.
MAX_CHUNK_BYTES, MAX_COORDINATE_BYTES = 2**31, 2**28
METADATA_FILES = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
# Codecs of zarr and numcodecs that only compute.
_CODECS = (
    *("adler32", "astype", "bitround", "blosc", "bytes", "bz2", "cast_value"),
    *("categorize", "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32"),
    *("gzip", "jenkins_lookup3", "json2", "lz4", "lzma", "packbits", "pcodec"),
    *("quantize", "scale_offset", "sharding_indexed", "shuffle", "transpose"),
    *("vlen-array", "vlen-bytes", "vlen-utf8", "zfpy", "zlib", "zstd"),
)


def check_file(path: str | Path) -> None:
    """Checks a local file or store before it is opened."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path}: is a pipe, a socket or a device, expected a file or the folder "
            "of a Zarr store"
        )
    if not status.st_size:
        raise ValueError(f"{path}: is empty (0 bytes); make it again")


def check_group(path: str, group: Any) -> None:
    """Checks the codecs and the chunks of the arrays of an opened group of Zarr."""
    for name, array in group.arrays():
        if getattr(array.metadata, "storage_transformers", ()):
            raise ValueError(
                f"{path}: {name} has storage_transformers, which zarr does not read; "
                "write it without them"
            )
        for codec in _codecs_of(array.metadata):
            if codec.removeprefix("numcodecs.") not in _CODECS:
                raise ValueError(
                    f"{path}: {name} has the codec {codec!r}, which is not known to be "
                    f"free of code; there are: {', '.join(_CODECS)}"
                )
        _check_chunks(f"{path}: {name}", array.chunks, array.dtype.itemsize)


def _codecs_of(metadata: Any) -> Iterator[str]:
    """Names of the codecs of an array, those within shards included."""
    if metadata.zarr_format == 2:
        codecs = *(metadata.filters or ()), metadata.compressor
        yield from (codec.get_config()["id"] for codec in codecs if codec is not None)
        return
    codecs = [codec.to_dict() for codec in metadata.codecs]
    while codecs:
        codec: Any = codecs.pop()
        yield codec["name"]
        codecs += (codec.get("configuration") or {}).get("codecs", ())


def _check_chunks(origin: str, chunks: Any, itemsize: int) -> None:
    size = math.prod(map(int, chunks)) * itemsize
    if size > MAX_CHUNK_BYTES:
        raise ValueError(
            f"{origin} has chunks of {'x'.join(map(str, chunks))} values, {size} "
            f"bytes, expected at most {MAX_CHUNK_BYTES}; write it with smaller chunks"
        )


def check_variables(path: str, variables: Mapping[Any, Any]) -> None:
    """Checks chunks of an opened file, and its coordinates, which are read whole."""
    for name, variable in variables.items():
        encoding = variable.encoding
        chunks = encoding.get("chunksizes") or encoding.get("chunks") or ()
        origin = f"{path}: variable {name!r}"
        _check_chunks(origin, chunks, variable.dtype.itemsize)
        if variable.dims == (name,) and variable.nbytes > MAX_COORDINATE_BYTES:
            raise ValueError(
                f"{path}: coordinate {name!r} has {variable.shape[0]} values, "
                f"{variable.nbytes} bytes, expected at most {MAX_COORDINATE_BYTES}; it "
                "is no axis of a grid"
            )


def refuse_links(path: Path) -> None:
    """Checks that an HDF5 file holds all of its content itself."""
    try:
        with h5py.File(path, "r") as file:
            groups, seen = [file["/"]], set()
            while groups:
                group: Any = groups.pop()
                if (number := h5o.get_info(group.id).addr) in seen:
                    continue
                seen.add(number)
                for name in group:
                    link = group.get(name, getlink=True)
                    if not isinstance(link, h5py.HardLink):
                        raise ValueError(
                            f"{path}: {group.name.rstrip('/')}/{name} is a link to "
                            f"{link.path!r}, expected the content itself. Do not use it"
                        )
                    inner = group[name]
                    if isinstance(inner, h5py.Group):
                        groups.append(inner)
                    elif isinstance(inner, h5py.Dataset) and (
                        inner.external or inner.is_virtual
                    ):
                        raise ValueError(
                            f"{path}: the values of {inner.name} are in other files, "
                            "expected the content itself. Do not use it"
                        )
    except (KeyError, OSError, RuntimeError) as error:
        # The kinds of errors of HDF5 are many for damaged content.
        raise ValueError(f"{path} cannot be read: {error}; it is damaged") from error
