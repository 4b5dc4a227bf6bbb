"""Zarr stores whose chunks are complete, and no larger than any data.

The plain reading of the specifications: a chunk without a file has the fill value of
its array. Zarr v3 arrays always have one, and their writers leave out chunks that hold
nothing else. A v2 array whose `fill_value` is null has none: its missing chunks are
lost, and readers of Zarr return zeros or whatever is in memory.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarr.storage import WrapperStore

from credit_jax.io.expansion import (
    MEASURED,
    SPARE,
    STATED,
    check_expansion,
    inner_places,
)
from credit_jax.io.metadata import (
    METADATA_FILES,
    bytes_of_chunk,
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
        return content is not None and has_no_fill_value(content)

    async def _metadata(self, array: str, prototype: Any) -> bytes | None:
        key = f"{array}/{_METADATA}" if array else _METADATA
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
        "fill_value null) that it could have"
    )
