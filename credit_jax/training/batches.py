"""The batches of an epoch, grouped by update."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from credit_jax.data import Batch, Loader
from credit_jax.io.activity import activity


def num_batches(loader: Loader, cap: int) -> int:
    """Batches of an epoch: all of the loader's, or at most `cap` if it is not 0."""
    return min(cap, loader.num_batches) if cap else loader.num_batches


def batches_left(loader: Loader, cap: int, done: int) -> int:
    """Batches of an epoch after some of its samples; see `num_batches`.

    Args:
        loader: loader of the training.
        cap: batches of a whole epoch, if it is not 0.
        done: samples of all data-parallel ranks.
    """
    left, size = loader.sampler.batches_left(done), loader.sampler.samples_per_batch
    return min(left, max(cap * size - done, 0) // size) if cap else left


def grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Yields the micro-batches of each update; the last group may be smaller."""
    while group := list(itertools.islice(batches, size)):
        yield group


def with_wait(
    groups: Iterator[list[Batch]],
) -> Iterator[tuple[list[Batch], float]]:
    """Yields each group with the seconds that the step waited for it."""
    while True:
        began = time.monotonic()
        with activity("reading a batch"):
            group = next(groups, None)
        if group is None:
            return
        yield group, time.monotonic() - began
