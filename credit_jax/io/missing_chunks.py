"""Zarr stores in which a chunk that is not there is an error, where it has no value.

The plain reading of the specifications: a chunk without a file has the fill value of
its array. Zarr v3 arrays always have one, and their writers leave out chunks that hold
nothing else. A v2 array whose `fill_value` is null has none: its missing chunks are
lost, and readers of Zarr return zeros or whatever is in memory.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from zarr.storage import WrapperStore

from credit_jax.io.metadata import METADATA_FILES, check_zarr_bytes

# Key of a chunk in its array, as "1.0.0" or "1/0/0", both within one folder or below.
_CHUNK = re.compile(r"(?P<array>.*?)/?(?P<chunk>\d+(?:[./]\d+)*)")
_METADATA = ".zarray"


class CompleteStore(WrapperStore):
    """A store that raises an error for a chunk of a v2 array that has no fill value."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """See `zarr.abc.store.Store.get`.

        Raises:
            ValueError: it is a chunk that is not there and has no fill value, or
                metadata that ask for too much, see `metadata.check_file`.
        """
        value = await super().get(key, *args, **options)
        if value is not None and posixpath.basename(key) in METADATA_FILES:
            check_zarr_bytes(key, value.to_bytes())
        if value is None and (match := _CHUNK.fullmatch(key)):
            prototype = args[0] if args else options.get("prototype")
            array = match["array"]
            while not await self._is_array(array, prototype) and "/" in array:
                array = posixpath.dirname(array)  # a chunk in folders, as "T/1/0/0"
            if await self._is_lossy(array, prototype):
                raise ValueError(missing_chunk(key))
        return value

    async def _is_array(self, array: str, prototype: Any) -> bool:
        return await self._metadata(array, prototype) is not None

    async def _is_lossy(self, array: str, prototype: Any) -> bool:
        content = await self._metadata(array, prototype)
        return content is not None and has_no_fill_value(content)

    async def _metadata(self, array: str, prototype: Any) -> bytes | None:
        key = f"{array}/{_METADATA}" if array else _METADATA
        metadata = await super().get(key, prototype)
        return None if metadata is None else metadata.to_bytes()


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
