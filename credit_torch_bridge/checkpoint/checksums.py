"""Checks CRC-32 checksums of the members of a zip file, which torch.load ignores."""

from __future__ import annotations

import io
import os
import warnings
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NUM_THREADS, _CHUNK = 8, 2**22
_MAX_LISTED = 5


def check_crcs(source: Path | bytes, name: str) -> None:
    """Compares the tensors of a file of torch.save with their checksums.

    Files that are not valid zip files are left to torch.load. If no checksum is right,
    the file was saved without them (`torch.serialization.set_crc32_options`), which is
    a warning.

    Args:
        source: the file, or its bytes.
        name: name of the file, for the error.

    Raises:
        ValueError: some members differ from their checksums; the error names them.
    """
    try:
        with _opened(source) as file, zipfile.ZipFile(file) as archive:
            members = [i for i in archive.infolist() if _is_tensor(i)]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        whole = list(pool.map(lambda member: _is_whole(source, member), members))
    damaged = [m.filename for m, good in zip(members, whole, strict=True) if not good]
    if len(damaged) == len(members) > 1:
        warnings.warn(f"{name}: saved without checksums, not checked", stacklevel=2)
    elif damaged:
        listed = ", ".join(damaged[:_MAX_LISTED])
        listed += ", ..." if len(damaged) > _MAX_LISTED else ""
        raise ValueError(
            f"{name}: damaged inside of its weights: {len(damaged)} of {len(members)} "
            f"tensors differ from their checksums ({listed}); download or copy it again"
        )


def _opened(source: Path | bytes) -> io.BufferedIOBase:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _is_tensor(member: zipfile.ZipInfo) -> bool:
    """Whether a member is a tensor, which torch.save stores uncompressed."""
    stored = member.compress_type == zipfile.ZIP_STORED
    return stored and member.file_size > 0 and "/data/" in member.filename


def _is_whole(source: Path | bytes, member: zipfile.ZipInfo) -> bool:
    """Whether the bytes of a member match its checksum."""
    with _opened(source) as file:
        file.seek(member.header_offset)
        header = file.read(30)
        if header[:4] != b"PK\x03\x04":
            return False
        skipped = sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
        file.seek(skipped, os.SEEK_CUR)
        checksum, left = 0, member.file_size
        while left and (chunk := file.read(min(_CHUNK, left))):
            checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
    return left == 0 and checksum == member.CRC
