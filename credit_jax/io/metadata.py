"""Judges data files by their metadata, before anything of them is allocated or run.

Files come from anywhere: their chunks may be larger than memory, their coordinates
longer, their links may lead elsewhere or nowhere, and their codecs may be code.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import h5py
import numpy as np
from h5py import h5o  # pyright: ignore

from credit_jax.io.expansion import check_pipeline

# A chunk, and the values of a coordinate, are in memory as a whole. Blosc has no larger
# chunks; a coordinate of hourly times for 4,000 years is of this size.
MAX_CHUNK_BYTES, MAX_COORDINATE_BYTES = 2**31, 2**28
# Text of the metadata of a store, which is parsed as a whole.
MAX_METADATA_BYTES = 2**26
METADATA_FILES = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
# Codecs of zarr and numcodecs that only compute.
_CODECS = (
    *("adler32", "astype", "bitround", "blosc", "bytes", "bz2", "cast_value"),
    *("categorize", "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32"),
    *("gzip", "jenkins_lookup3", "json2", "lz4", "lzma", "packbits", "pcodec"),
    *("quantize", "scale_offset", "sharding_indexed", "shuffle", "transpose"),
    *("vlen-array", "vlen-bytes", "vlen-utf8", "zfpy", "zlib", "zstd"),
)
# zarr's names of data types that numpy has by other ones.
_NO_NUMBERS = ("string", "bytes", "variable_length_bytes", "null_terminated_bytes")


def check_file(path: str | Path) -> None:
    """Checks a local file or store before it is opened.

    Args:
        path: a file, or the folder of a Zarr store.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is empty, no plain file, or its metadata ask for more memory than
            any data need, or for codecs that are not known to only compute.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        check_store(Path(path))
    elif not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path}: is a pipe, a socket or a device, expected a file or the folder "
            "of a Zarr store"
        )
    elif not status.st_size:
        raise ValueError(f"{path}: is empty (0 bytes); make it again")


def check_store(folder: Path) -> None:
    """Checks the metadata of a Zarr store and of its arrays; see `check_file`."""
    for place in (folder, *(Path(e) for e in os.scandir(folder) if e.is_dir())):
        for name in METADATA_FILES:
            if (place / name).is_file():
                check_zarr_metadata(place / name)


def check_zarr_metadata(path: Path) -> None:
    """Checks a metadata file of Zarr v2 or v3; see `check_file`."""
    _check_arrays(path, read_metadata(path))


def check_zarr_bytes(key: str, content: bytes) -> dict[str, Any]:
    """Checks the metadata of Zarr that a store has under a key; see `check_file`.

    Returns:
        Path of an array in the store -> its metadata.
    """
    return _check_arrays(PurePosixPath(key), _parsed(key, content))


def _check_arrays(path: PurePath, content: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {}
    for name, node in _arrays(path, content):
        where = name.removeprefix(str(path.parent)).strip("/") or path.parent.name
        _check_array(f"{path}: {where}", node)
        arrays[name] = node
    return arrays


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Reads a metadata file of Zarr.

    Raises:
        ValueError: it is too large, nested too deeply, or no JSON object.
    """
    _check_length(path, path.stat().st_size)
    return _parsed(path, path.read_bytes())


def _check_length(path: Any, size: int) -> None:
    if size > MAX_METADATA_BYTES:
        raise ValueError(
            f"{path}: has {size} bytes, expected at most {MAX_METADATA_BYTES} of the "
            "metadata of a store"
        )


def _parsed(path: Any, text: bytes) -> Mapping[str, Any]:
    _check_length(path, len(text))
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: is no JSON ({error}); make the store again"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: is no JSON object; make the store again")
    return content


def _arrays(path: PurePath, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Paths and metadata of the arrays that a metadata file describes."""
    folder = path.parent
    if path.name == ".zarray" or content.get("node_type") == "array":
        yield str(folder), content
    consolidated = content
    if path.name == "zarr.json":
        consolidated = content.get("consolidated_metadata") or {}
    nodes = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    for key, node in nodes.items() if isinstance(nodes, dict) else ():
        if key.startswith("/") or ".." in key.split("/"):
            raise ValueError(f"{path}: {key!r} leads out of the store; do not use it")
        if key.split("/")[-1] == ".zarray":
            yield str(folder / PurePosixPath(key).parent), node
        elif isinstance(node, dict) and node.get("node_type") == "array":
            yield str(folder / key), node


def _check_array(where: str, node: Any) -> None:
    if not isinstance(node, dict):
        raise ValueError(f"{where} is no description of an array; make the store again")
    shape = _lengths(where, "shape", node.get("shape"), least=0)
    if node.get("storage_transformers"):
        raise ValueError(
            f"{where} has storage_transformers, which may lead anywhere; write it "
            "without them"
        )
    pipelines = codecs_of(where, node)
    if sum("sharding_indexed" in pipeline for pipeline in pipelines) > 1:
        raise ValueError(f"{where} has shards within shards; write it with one of them")
    for pipeline in pipelines:
        for codec in pipeline:
            if codec.removeprefix("numcodecs.") not in _CODECS:
                raise ValueError(
                    f"{where} has the codec {codec!r}, which is not known to be free "
                    f"of code; there are: {', '.join(_CODECS)}"
                )
        check_pipeline(where, [name.removeprefix("numcodecs.") for name in pipeline])
    _check_index(where, node)
    chunks = _chunks(where, node, shape)
    size = math.prod(chunks) * _item_bytes(where, node)
    if size > MAX_CHUNK_BYTES:
        raise ValueError(
            f"{where} has chunks of {'x'.join(map(str, chunks))} values, {size} bytes, "
            f"expected at most {MAX_CHUNK_BYTES}; write it with smaller chunks"
        )


def _check_index(where: str, node: Mapping[str, Any]) -> None:
    """Checks that the index of shards is as `expansion.inner_places` reads it."""
    for codec in node.get("codecs") or ():
        settings = codec.get("configuration") if isinstance(codec, dict) else None
        index = settings.get("index_codecs") if isinstance(settings, dict) else None
        for inner in index or ():
            name = inner.get("name") if isinstance(inner, dict) else inner
            how = inner.get("configuration") if isinstance(inner, dict) else None
            endian = how.get("endian", "little") if isinstance(how, dict) else "little"
            if name not in ("bytes", "crc32c") or endian != "little":
                raise ValueError(
                    f"{where} has an index of shards in {str(inner)[:80]}, expected "
                    "little-endian bytes and crc32c; write it again"
                )


def bytes_of_chunk(where: str, node: Mapping[str, Any]) -> int | None:
    """Most bytes of a chunk of an array before it is compressed.

    Args:
        where: the array, for errors.
        node: its metadata, which were checked.

    Returns:
        The bytes of values of 8 bytes, which filters may make of smaller ones, or of
        larger values; None if the sizes of values differ.
    """
    names = [name for codecs in codecs_of(where, node) for name in codecs]
    kind = node.get("dtype", node.get("data_type"))
    is_text = kind in _NO_NUMBERS or kind == "|O" or isinstance(kind, dict)
    if is_text or any(name.startswith(("vlen", "json")) for name in names):
        return None
    values = math.prod(_chunks(where, node, node["shape"]))
    return values * max(8, _item_bytes(where, node))


def _chunks(where: str, node: Mapping[str, Any], shape: Sequence[int]) -> list[int]:
    declared = node.get("chunks")
    if node.get("zarr_format") == 3:
        grid = node.get("chunk_grid")
        configuration = grid.get("configuration") if isinstance(grid, dict) else None
        declared = (
            configuration.get("chunk_shape")
            if isinstance(configuration, dict)
            else None
        )
        for codec in node.get("codecs") or ():
            # The chunk of a shard is in memory, and its index.
            if isinstance(codec, dict) and codec.get("name") == "sharding_indexed":
                configuration = codec.get("configuration")
                declared = (
                    configuration.get("chunk_shape")
                    if isinstance(configuration, dict)
                    else None
                )
    chunks = _lengths(where, "chunks", declared, least=1)
    if len(chunks) != len(shape):
        raise ValueError(
            f"{where} has shape {shape}, but chunks {chunks}; make the store again"
        )
    return chunks


def _lengths(where: str, what: str, value: Any, *, least: int) -> list[int]:
    good = isinstance(value, list) and all(type(n) is int and n >= least for n in value)
    if not good:
        raise ValueError(
            f"{where} has {what} {str(value)[:80]}, expected a list of integers of "
            f"{least} or more; make the store again"
        )
    return value


def _item_bytes(where: str, node: Mapping[str, Any]) -> int:
    """Bytes of a value; 8 of those whose sizes differ."""
    kind = node.get("dtype", node.get("data_type"))
    if isinstance(kind, dict):
        configuration = kind.get("configuration")
        length = (
            configuration.get("length_bytes", 8)
            if isinstance(configuration, dict)
            else 8
        )
        return length if type(length) is int and length > 0 else 8
    if kind in _NO_NUMBERS:
        return 8
    try:
        return np.dtype(kind).itemsize or 1
    except (TypeError, ValueError):
        raise ValueError(
            f"{where} has the data type {str(kind)[:80]}, which is not available"
        ) from None


def codecs_of(where: str, node: Mapping[str, Any]) -> list[list[str]]:
    """Names of the codecs of an array, and those within others, in order of encoding.

    Args:
        where: the array, for errors.
        node: metadata of the array.

    Returns:
        Names of the codecs of the array, and a list for each one within a codec.

    Raises:
        ValueError: a codec has no name.
    """
    last = [node.get("compressor"), *_listed(where, node.get("codecs"))]
    lists, names = [[*_listed(where, node.get("filters")), *last]], []
    while lists:
        pipeline = []
        for codec in lists.pop(0):
            if codec is None:
                continue
            name = codec
            if isinstance(codec, dict):
                name = codec.get("id", codec.get("name"))
                settings = codec.get("configuration")
                for key in ("codecs", "index_codecs"):
                    inner = settings.get(key) if isinstance(settings, dict) else None
                    lists.append(_listed(where, inner))
            if not isinstance(name, str):
                raise ValueError(
                    f"{where} has a codec without a name, {str(codec)[:80]}"
                )
            pipeline.append(name)
        names.append(pipeline)
    return names


def _listed(where: str, codecs: Any) -> list[Any]:
    if codecs is None or isinstance(codecs, list):
        return list(codecs or ())
    raise ValueError(f"{where} has codecs {str(codecs)[:80]}, expected a list of them")


def check_variables(path: str, variables: Mapping[Any, Any]) -> None:
    """Checks the chunks of an opened file, and its coordinates, which are read whole.

    Args:
        path: path of the file, for the error.
        variables: xarray's variables, not read.

    Raises:
        ValueError: a coordinate is longer than any time axis or grid, or a chunk larger
            than those of any data.
    """
    for name, variable in variables.items():
        encoding = variable.encoding
        chunks = encoding.get("chunksizes") or encoding.get("chunks") or ()
        size = math.prod(map(int, chunks)) * variable.dtype.itemsize
        if size > MAX_CHUNK_BYTES:
            raise ValueError(
                f"{path}: variable {name!r} has chunks of "
                f"{'x'.join(map(str, chunks))} values, {size} bytes, expected at most "
                f"{MAX_CHUNK_BYTES}; write it with smaller chunks"
            )
        if variable.dims == (name,) and variable.nbytes > MAX_COORDINATE_BYTES:
            raise ValueError(
                f"{path}: coordinate {name!r} has {variable.shape[0]} values, "
                f"{variable.nbytes} bytes, expected at most {MAX_COORDINATE_BYTES}; it "
                "is no axis of a grid"
            )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Names the file in errors of HDF5, whose kinds are many for damaged content."""
    try:
        yield
    except (KeyError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; it is damaged") from error


def refuse_links(path: Path) -> None:
    """Checks that an HDF5 file holds all of its content itself.

    Args:
        path: a NetCDF-4 file of others.

    Raises:
        ValueError: there is a link, or an array whose values are in other files.
    """
    with _readable(path), h5py.File(path, "r") as file:
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
