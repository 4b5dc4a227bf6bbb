"""Seeded changes of files: bytes, and values in JSON; what reads them is tried."""

from __future__ import annotations

import json
import random
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.memory import MemoryWatch

SECONDS = 20.0


def changed_bytes(data: bytes, chosen: random.Random) -> bytes:
    """Returns bytes with parts truncated, flipped, overwritten or moved."""
    return bytes(chosen.choice(BYTES)(bytearray(data), chosen)) if data else b"\0"


def changed_json(text: str, chosen: random.Random) -> str:
    """Returns JSON with another value in one place."""
    content = json.loads(text)
    parent = content
    while isinstance(parent, (dict, list)) and parent:
        keys = list(parent) if isinstance(parent, dict) else [*range(len(parent))]
        key = chosen.choice(keys)
        if not isinstance(parent[key], (dict, list)) or chosen.random() < 0.2:
            parent[key] = chosen.choice(VALUES)
            break
        parent = parent[key]
    return json.dumps(content)


def trial(call: Callable[[], str], folder: Path, *made: str) -> str:
    """Returns what a call returns, or a failure: an exception, or what is not allowed.

    Args:
        call: returns an outcome.
        folder: that must be unchanged after it.
        made: names of new files or folders there that are allowed.
    """

    def listing() -> set[tuple[str, int]]:
        paths = (path for path in folder.iterdir() if path.name not in made)
        return {
            (str(path), path.lstat().st_mtime_ns)
            for top in paths
            for path in (top, *(top.rglob("*") if not top.is_symlink() else ()))
        }

    before, began = listing(), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = call()
    except Exception:
        return traceback.format_exc()[-3000:]
    seconds = time.process_time() - began
    if seconds > SECONDS:
        return f"took {seconds:.0f} s"
    changed = listing() ^ before
    return f"files were changed: {sorted(changed)}" if changed else outcome


def try_all(
    seeds: range, try_seed: Callable[[int], tuple[str, str]]
) -> Iterator[tuple[int, str, str]]:
    """Yields (seed, kind, outcome) for each seed, and what is wrong with the memory."""
    memory = MemoryWatch()
    for seed in seeds:
        yield seed, *try_seed(seed)
    yield from memory.problems(seeds.stop)


def count_outcomes(trials: Iterable[tuple[int, str, str]], *allowed: str) -> int:
    """Prints how many trials (seed, kind, outcome) ended how; 1 at one that may not."""
    counts = dict.fromkeys(allowed, 0)
    for seed, kind, outcome in trials:
        if outcome not in counts:
            print(f"seed {seed}, {kind}: {outcome}")
            return 1
        counts[outcome] += 1
    print(counts)
    return 0


VALUES: list[Any] = [None, -1, 10**30, "../../x", "/etc/passwd", [], {}, True, "\0"]


def _truncate(data: bytearray, chosen: random.Random) -> bytearray:
    return data[: chosen.randrange(len(data))]


def _flip(data: bytearray, chosen: random.Random) -> bytearray:
    for _ in range(chosen.choice([1, 1, 3, 50])):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    return data


def _flip_in_the_frame(data: bytearray, chosen: random.Random) -> bytearray:
    """Flips bits where headers and tables are: at the beginning and at the end."""
    for _ in range(chosen.choice([1, 2, 8])):
        place = chosen.randrange(min(len(data), 4096))
        data[place if chosen.random() < 0.5 else -1 - place] ^= 1 << chosen.randrange(8)
    return data


def _overwrite(data: bytearray, chosen: random.Random) -> bytearray:
    start, size = chosen.randrange(len(data)), chosen.choice([1, 8, 4096])
    data[start : start + size] = chosen.randbytes(size)
    return data


def _insert(data: bytearray, chosen: random.Random) -> bytearray:
    start = chosen.randrange(len(data))
    return data[:start] + chosen.randbytes(chosen.choice([1, 7, 512])) + data[start:]


def _numbers(data: bytearray, chosen: random.Random) -> bytearray:
    """Overwrites eight bytes by a large length or offset."""
    start = chosen.randrange(max(1, len(data) - 8))
    value = chosen.choice([2**62, 2**40, 2**31, 0])
    data[start : start + 8] = struct.pack("<Q", value)
    return data


BYTES: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (
    _truncate,
    _flip,
    _flip_in_the_frame,
    _overwrite,
    _insert,
    _numbers,
)
