"""Reads a folder of torch.distributed.checkpoint without torch's loader.

torch's loader unpickles the index (`.metadata`) and every value that is not a tensor.
This module reads the index as plain data (`safe_pickle`), and each stored piece by
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import mmap
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from credit_torch_bridge.checkpoint.checksums import check_crcs
from credit_torch_bridge.checkpoint.safe_pickle import PickledObject, read_pickle

INDEX = ".metadata"
_PACKAGE = "torch.distributed.checkpoint"
_METADATA = f"{_PACKAGE}.metadata"
_MAX_INDEX = 200_000_000
ALLOWED = frozenset(
    {
        f"{_METADATA}.{name}"
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata",
            "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    }
    | {f"{_PACKAGE}.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")}
    | {f"{_PACKAGE}.storage.StorageMeta", "torch.serialization._get_layout"}
    | {"torch.Size", "collections.OrderedDict"}
    | {"pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.WindowsPath"}
    | {str(dtype) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
)  # fmt: skip


def load_folder(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """Reads the nested dict of a torch.distributed checkpoint.

    Args:
        folder: folder of the checkpoint.
        verify: compare tensors with their checksums.

    Raises:
        ValueError: the index or a piece is broken, is missing, or needs code.
    """
    index_file = folder / INDEX
    if index_file.stat().st_size > _MAX_INDEX:
        raise ValueError(f"{index_file}: too large for an index")
    try:
        index = read_pickle(index_file.read_bytes(), ALLOWED)
        return _load(_Pieces(folder, verify=verify), index)
    except ValueError as error:
        raise ValueError(f"{index_file}: {error}") from None
    except (
        AttributeError,
        KeyError,
        TypeError,
        IndexError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise ValueError(
            f"{index_file}: not an index that is known ({error!r})"
        ) from None


def _load(pieces: _Pieces, index: PickledObject) -> dict[str, Any]:
    stored = _by_place(index.get("storage_data"))
    paths = index.get("planner_data") or {}
    nested: dict[str, Any] = {}
    for name, entry in index.get("state_dict_metadata").items():
        if entry.name.endswith("BytesStorageMetadata"):
            value = pieces.read(stored[name, ()])
        else:
            value = _assemble(name, entry, stored, pieces)
        path = paths.get(name, (name,)) if isinstance(paths, Mapping) else (name,)
        _place(nested, tuple(path), value)
    return nested


def _by_place(
    storage: Mapping[PickledObject, PickledObject],
) -> dict[tuple[str, tuple], PickledObject]:
    """Storage location of each piece, by name and offset in the tensor."""
    return {
        (key.get("fqn"), _numbers(key.get("offset"))): value
        for key, value in storage.items()
    }


def _numbers(size: Any) -> tuple[int, ...]:
    """The numbers of a torch.Size."""
    if size is None:
        return ()
    return tuple(size.args[0]) if isinstance(size, PickledObject) else tuple(size)


def _assemble(
    name: str,
    entry: PickledObject,
    stored: Mapping[tuple[str, tuple], PickledObject],
    pieces: _Pieces,
) -> torch.Tensor:
    """Assembles one tensor from its chunks."""
    shape, chunks = _numbers(entry.get("size")), entry.get("chunks")
    if len(chunks) == 1 and _numbers(chunks[0].get("sizes")) == shape:
        offset = _numbers(chunks[0].get("offsets"))
        return _shaped(pieces.read(_info(stored, name, offset)), shape, name)
    covered = 0
    whole: torch.Tensor | None = None
    for chunk in chunks:
        offset, size = _numbers(chunk.get("offsets")), _numbers(chunk.get("sizes"))
        piece = _shaped(pieces.read(_info(stored, name, offset)), size, name)
        whole = torch.zeros(shape, dtype=piece.dtype) if whole is None else whole
        place = tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))
        whole[place] = piece
        covered += piece.numel()
    if whole is None or covered != whole.numel():
        raise ValueError(f"{name}: its chunks do not cover its shape {shape}")
    return whole


def _info(
    stored: Mapping[tuple[str, tuple], PickledObject],
    name: str,
    offset: tuple[int, ...],
) -> PickledObject:
    record = stored.get((name, offset)) or stored.get((name, ()))
    if record is None:
        raise ValueError(f"{name}: nothing says where its chunk at {offset} is stored")
    return record


def _shaped(value: Any, shape: tuple[int, ...], name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
        got = getattr(value, "shape", type(value).__name__)
        raise ValueError(f"{name}: a stored chunk is {got}, the index says {shape}")
    return value


class _Pieces:
    """The stored pieces of a folder; each file is mapped once."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder, self.verify = folder, verify
        self.files: dict[str, mmap.mmap] = {}

    def read(self, info: PickledObject) -> Any:
        """Reads one piece.

        Raises:
            ValueError: its file is missing, too short, or needs code.
        """
        if info.get("transform_descriptors"):
            raise ValueError("the pieces are compressed; save the checkpoint without")
        name = info.get("relative_path")
        start, length = int(info.get("offset")), int(info.get("length"))
        data = self._map(name)
        if start < 0 or length <= 0 or start + length > len(data):
            raise ValueError(f"{name} is too short: it may be truncated")
        piece = data[start : start + length]
        if self.verify:
            check_crcs(piece, f"{self.folder / name}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(
                    io.BytesIO(piece),
                    map_location="cpu",
                    weights_only=True,
                )
        except Exception as error:
            asked = re.search(r"GLOBAL (\S+)", str(error))
            what = f"it asks for {asked.group(1)}, which is code" if asked else "broken"
            raise ValueError(f"{name}: a piece was not loaded: {what}") from None

    def _map(self, name: Any) -> mmap.mmap:
        if (
            not isinstance(name, str)
            or "/" in name
            or "\\" in name
            or name in ("", "..")
        ):
            raise ValueError(f"the index names a file {name!r} outside the folder")
        if name not in self.files:
            path = self.folder / name
            if not path.is_file() or path.stat().st_size == 0:
                raise ValueError(f"{name} is missing or empty")
            with path.open("rb") as file:
                self.files[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.files[name]


def _place(nested: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Sets a value at a path of names; a number in a path is the key of a dict."""
    here: Any = nested
    for part in path[:-1]:
        here = here.setdefault(part, {})
    here[path[-1]] = value
