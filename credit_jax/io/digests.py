"""SHA-256 digests of files, to detect damaged ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from credit_jax.io.atomic import new_file

# Reading and hashing release the GIL; more threads than this read no faster.
_NUM_THREADS = 8
# Of the files of `digests_of`, in bytes.
_LARGEST = 2**30


@dataclass(frozen=True)
class FileRecord:
    """Digest and size of a file at the time it was recorded.

    Attributes:
        sha256: digest of the content, hexadecimal.
        size: number of bytes.
    """

    sha256: str
    size: int


def record_of(path: Path) -> FileRecord:
    """The record of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(digest, path.stat().st_size)


def record_files(folder: Path) -> dict[str, FileRecord]:
    """The records of all files below a folder, by sorted relative path."""
    names = sorted(_files_below(folder))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        records = pool.map(lambda name: record_of(folder / name), names)
        return dict(zip(names, records, strict=True))


def _files_below(folder: Path) -> Iterator[str]:
    """Relative POSIX paths of all files below a folder, including symbolic links."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in (*names, *links):
            yield (Path(parent) / name).relative_to(folder).as_posix()


def digest_of(folder: Path) -> str:
    """SHA-256 of the names and the contents of all files below a folder."""
    total = hashlib.sha256()
    for name, record in record_files(folder).items():
        total.update(name.encode())
        total.update(bytes.fromhex(record.sha256))
    return total.hexdigest()


def digests_of(named: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of files by name.

    Folders and files of more than 1 GiB have none: they are data sets, which take long
    to read.

    Args:
        named: path of each name; environment variables are expanded.
    """
    paths = {name: Path(os.path.expandvars(path)) for name, path in named.items()}
    return {
        name: record_of(path).sha256
        for name, path in paths.items()
        if path.is_file() and path.stat().st_size <= _LARGEST
    }


def write_records(path: Path, records: Mapping[str, FileRecord]) -> None:
    """Writes records as JSON."""
    content = {name: dataclasses.asdict(record) for name, record in records.items()}
    with new_file(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def find_damage(path: Path, *, or_newer: bool = False) -> list[str]:
    """Compares the files of a folder with the records that `write_records` wrote.

    Files without a record are not checked.

    Args:
        path: file of the records, in the folder to check.
        or_newer: accept files that are newer than their records, such as those of a
            run that continues in the folder.

    Returns:
        One line for each file that is missing or differs, or one line if the records
        cannot be read; an empty list if `path` does not exist.
    """
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
            if or_newer and file.stat().st_mtime > written:
                return None
            actual = record_of(file)
        except OSError as error:
            return f"{file}: {error.strerror or error}"
        if actual == expected:
            return None
        sizes = f"{actual.size} of {expected.size} bytes"
        what = sizes if actual.size != expected.size else "its bytes were changed"
        return f"{file}: damaged, {what}"

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return [line for line in pool.map(line_of, records.items()) if line]
