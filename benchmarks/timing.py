"""Timing on shared machines: sides take turns, and ratios are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

# A side of which one run takes longer than this multiple of the limit is not repeated.
_FAR_ABOVE = 4


@dataclass(frozen=True)
class Times:
    """Seconds of one side, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / self.median)


def take_turns(
    sides: Mapping[str, Callable[[], object]],
    *,
    warmup: int,
    rounds: int,
    limit: float = 120.0,
) -> dict[str, Times]:
    """Runs every side once a round, so that all see the same load.

    Args:
        sides: functions that return when their work is done, by name.
        warmup: rounds that do not count.
        rounds: rounds that count; at least 3, also after `limit`.
        limit: seconds after which no further round begins; a side of which one counted
            run takes several times as long is not run again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    begin = time.monotonic()
    for number in range(warmup + rounds):
        if number >= warmup + 3 and time.monotonic() - begin > limit:
            break
        for name, run in sides.items():
            if max(seconds[name], default=0.0) > _FAR_ABOVE * limit:
                continue
            start = time.perf_counter()
            run()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(theirs: Times, ours: Times) -> float:
    """The speedup of `ours`: the median of the ratios of common rounds."""
    pairs = zip(theirs.seconds, ours.seconds, strict=False)
    return float(np.median([slow / fast for slow, fast in pairs]))
