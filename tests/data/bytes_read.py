"""Number of bytes that sources have read directly from files in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """Collects the number of bytes of each read within the block."""
    read, counts = os.preadv, []

    def counted(*args):
        counts.append(read(*args))
        return counts[-1]

    with mock.patch.object(os, "preadv", counted):
        yield counts
