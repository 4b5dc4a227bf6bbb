"""SHA-256 digests of files, to detect damaged and changed ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

from credit_jax.io.atomic import new_file
from credit_jax.io.icechunk import is_repository, session_at
from credit_jax.io.metadata import METADATA_FILES

# Reading and hashing release the GIL; more threads than this read no faster.
_NUM_THREADS = 8
# Bytes that `digests_of` reads wholly.
_LARGEST = 2**30
# Of more, it reads pieces at equal distances, the first and the last byte among them.
_NUM_PIECES, _PIECE = 64, 2**20
# Of folders with more files than this, none is read but metadata.
_MOST_FILES = 100_000


@dataclass(frozen=True)
class FileRecord:
    """Digest and size of a file at the time it was recorded."""

    sha256: str  # digest of the content, hexadecimal
    size: int  # number of bytes


def record_of(path: Path) -> FileRecord:
    """The record of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(digest, path.stat().st_size)


def record_files(
    folder: Path, leave_out: Collection[str] = ()
) -> dict[str, FileRecord]:
    """The records of the files below a folder, by sorted relative path."""
    below = set[str]()
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        paths = (Path(parent) / name for name in (*files, *links))
        below |= {path.relative_to(folder).as_posix() for path in paths}
    names = sorted(below.difference(leave_out))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        records = pool.map(lambda name: record_of(folder / name), names)
        return dict(zip(names, records, strict=True))


def digest_of(folder: Path) -> str:
    """SHA-256 of the names and the contents of all files below a folder."""
    total = hashlib.sha256()
    for name, record in record_files(folder).items():
        total.update(name.encode())
        total.update(bytes.fromhex(record.sha256))
    return total.hexdigest()


def digests_of(named: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of files, and of folders such as Zarr stores, by name."""
    # Of those of more than 1 GiB, which take long to read, it is that of the names and
    # sizes of all files, of the metadata of Zarr, and of 64 MiB of the rest: the
    # beginning, the end, and pieces of 1 MiB at equal distances. Of folders with more
    # than 100,000 files it is that of the metadata alone. Icechunk
    # repositories have the ID of their snapshot. What is remote has none.
    paths = {name: os.path.expandvars(path) for name, path in named.items()}
    return {
        name: session_at(path).snapshot_id
        if is_repository(path)
        else _digest_at(Path(path))
        for name, path in paths.items()
        if is_repository(path) or os.path.exists(path)
    }


def _digest_at(path: Path) -> str:
    """The digest of a file or folder; see `digests_of`."""
    if path.is_file() and path.stat().st_size <= _LARGEST:
        return record_of(path).sha256
    sizes = dict(islice(_sizes_at(path), _MOST_FILES + 1))
    if len(sizes) > _MOST_FILES:
        arrays = (entry.path for entry in os.scandir(path) if entry.is_dir())
        candidates = (Path(p, name) for p in (path, *arrays) for name in METADATA_FILES)
        files = [file for file in candidates if file.is_file()]
        sizes = {str(file.relative_to(path)): file.stat().st_size for file in files}
    sizes = dict(sorted(sizes.items()))
    total_size, names = sum(sizes.values()), [*sizes]
    # Name, offset and size of the parts that are read; metadata always wholly.
    pieces = [
        (name, 0, size)
        for name, size in sizes.items()
        if total_size <= _LARGEST or Path(name).name in METADATA_FILES
    ]
    starts = [0, *accumulate(sizes.values())]
    for number in range(_NUM_PIECES if total_size > _LARGEST else 0):
        first = number * (total_size - _PIECE) // (_NUM_PIECES - 1)
        index = bisect_right(starts, first) - 1
        pieces.append((names[index], first - starts[index], _PIECE))

    def hashed(piece: tuple[str, int, int]) -> bytes:
        name, offset, size = piece
        with (path / name).open("rb") as file:
            if not offset and size == sizes[name]:
                return hashlib.file_digest(file, "sha256").digest()
            file.seek(offset)
            return hashlib.sha256(file.read(size)).digest()

    total = hashlib.sha256(json.dumps(sizes).encode())
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for digest in pool.map(hashed, pieces):
            total.update(digest)
    return total.hexdigest()


def _sizes_at(path: Path) -> Iterator[tuple[str, int]]:
    """Relative paths and sizes of the files of a folder and of those linked from it."""
    if path.is_file():
        yield "", path.stat().st_size  # it is the only one
    entered = {os.path.realpath(path)}
    for parent, folders, names in os.walk(path, followlinks=True):
        # A link to a folder above would be followed without end.
        real = {name: os.path.realpath(os.path.join(parent, name)) for name in folders}
        folders[:] = sorted(name for name in folders if real[name] not in entered)
        entered.update(real.values())
        for file in (Path(parent) / name for name in names):
            status = file.stat() if file.exists() else None
            if status is not None and stat.S_ISREG(status.st_mode):
                yield file.relative_to(path).as_posix(), status.st_size


def write_records(path: Path, records: Mapping[str, FileRecord]) -> None:
    """Writes records as JSON."""
    content = {name: dataclasses.asdict(record) for name, record in records.items()}
    with new_file(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def find_damage(path: Path, *, or_newer: bool = False) -> list[str]:
    """Lists the files of a folder that differ from records of `write_records`."""
    if not path.is_file():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records = {name: FileRecord(**entry) for name, entry in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        return [f"{path}: not readable ({error})"]

    written = path.stat().st_mtime

    def line_of(item: tuple[str, FileRecord]) -> str | None:
        name, expected = item
        file = path.parent / name
        try:
            # Those of a run that continues in the folder.
            if or_newer and file.stat().st_mtime > written:
                return None
            actual = record_of(file)
        except OSError as error:
            return f"{file}: {error.strerror or error}"
        if actual == expected:
            return None
        sizes = f"{actual.size} of {expected.size} bytes"
        subject = sizes if actual.size != expected.size else "its bytes were changed"
        return f"{file}: damaged, {subject}"

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return [line for line in pool.map(line_of, records.items()) if line]
