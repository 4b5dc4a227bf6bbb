"""Reads GRIB messages, which the inventory (.idx) of a file locates."""

import dataclasses
import functools
import importlib
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.data.sources.source import BadSampleError
from credit_jax.io.remote import exists, read_bytes

# Number of cached inventories.
_CACHE_SIZE = 512


@dataclasses.dataclass(frozen=True)
class Message:
    """One line of an inventory.

    Attributes:
        variable, level, step: as written in the inventory.
        start: offset of the message in the file, bytes.
        size: size in bytes; -1 for all bytes up to the end of the file.
    """

    variable: str
    level: str
    step: str
    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class GribField:
    """A decoded message.

    Attributes:
        values: (y, x) rows as stored; NaN where values are missing.
        message: pygrib's message.
    """

    values: Float[np.ndarray, "y x"]
    message: Any


def read_inventory(path: str, origin: str) -> tuple[Message, ...]:
    """Reads the inventory of a file.

    Args:
        path: path or URL of the GRIB file.
        origin: dotted path of the config key, for errors.

    Raises:
        BadSampleError: the file or its inventory is missing.
        ValueError: the inventory cannot be parsed.
        OSError: the inventory cannot be read.
    """
    for needed in (path, f"{path}.idx"):
        if not exists(needed):
            raise BadSampleError(f"{origin}: {needed!r} does not exist")
    try:
        return _inventory(f"{path}.idx")
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}.idx: no inventory of a GRIB file ({error})") from None


@functools.lru_cache(_CACHE_SIZE)
def _inventory(path: str) -> tuple[Message, ...]:
    text = read_bytes(path).decode()
    lines = [line.strip().split(":") for line in text.splitlines() if line.strip()]
    parts = [line for line in lines if len(line) > 5]
    starts = [int(line[1]) for line in parts]
    ends = [*starts[1:], starts[-1] - 1]
    return tuple(
        Message(line[3].strip(), line[4].strip(), line[5].strip(), start, end - start)
        for line, start, end in zip(parts, starts, ends, strict=True)
    )


def decode(path: str, message: Message) -> GribField:
    """Reads and decodes a message.

    Raises:
        ValueError: pygrib is not installed, or the message is damaged.
        OSError: the file cannot be read.
    """
    try:
        pygrib: Any = importlib.import_module("pygrib")
    except ImportError:
        raise ValueError(
            f"{path}: GRIB needs pygrib: pip install credit-jax[grib]"
        ) from None
    content = read_bytes(path, message.start, message.size)
    try:
        decoded = pygrib.fromstring(content)
        values = np.ma.filled(decoded.values, np.nan).astype(np.float32)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{path}: the message of {message.variable} ({message.level}) at byte "
            f"{message.start} cannot be decoded ({error}); fetch the file again"
        ) from error
    return GribField(values, decoded)
