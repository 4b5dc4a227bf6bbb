"""The loader feeding the training step, from files, and each of them alone.

No field is kept in memory, as of a data set much larger than it: every sample is read
and placed on the device while a step runs, which normalizes the one before.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu import step
from benchmarks.gpu.records import Results, Setting
from benchmarks.gpu.store import prepare
from benchmarks.report import Table
from benchmarks.speed.cases import case_of
from benchmarks.timing import take_turns
from credit_jax.config import build_config
from credit_jax.data import Batch, Loader, build_loader
from credit_jax.data.sources import reader
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import Rollout

TITLE = "The loader feeding the training step"
_TIMES = 6
_STEPS, _REHEARSED = 60, 4
_THREADS = 8


def items(setting: Setting) -> list[str]:
    """One item."""
    del setting
    return ["0.25 degrees"]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns seconds of a step alone, of a read alone, and of a step with its read."""
    del item
    began = time.monotonic()
    config = prepare(
        "025deg",
        setting.scratch / "025deg",
        times=_TIMES,
        forced=_TIMES,
        tiny=setting.rehearse,
    )
    result: dict[str, Any] = {"writing": time.monotonic() - began}
    threads = min(_THREADS, os.cpu_count() or 1)
    config["trainer"] |= {"thread_workers": threads, "prefetch_factor": 2}
    job = build_config(config)
    with mock.patch.object(reader, "CACHE_BYTES", 0):
        loader = build_loader(job, split="train").for_step()
        side = step.jax_side(
            case_of("loader", config["model"], 1),
            dtype=setting.dtype,
            rollout=Rollout(prepare=loader.preparation),
        )
        rounds = 3 if setting.rehearse else 20
        alone = take_turns({"": side.train}, warmup=2, rounds=rounds, limit=10)[""]
        result |= {"threads": threads, "step": alone.median}
        save(result)
        count = _REHEARSED if setting.rehearse else _STEPS
        result |= {"steps": count, "read": _read(loader, count)}
        save(result)
        return result | _fed(side, loader, count)


def _batches(loader: Loader) -> Iterator[Batch]:
    """Batches of successive epochs."""
    return itertools.chain.from_iterable(map(loader.epoch, itertools.count()))


def _read(loader: Loader, count: int) -> float:
    """Seconds between two batches of the loader alone, from the second on."""
    batches = _batches(loader)
    next(batches)
    began = time.monotonic()
    for _ in itertools.islice(batches, count):
        pass
    return (time.monotonic() - began) / count


def _fed(side: Any, loader: Loader, count: int) -> dict[str, Any]:
    """Seconds of a step with its read, and those that it waits for a batch.

    One step runs while the next batch is awaited, as in training.
    """
    batches, waits, pending = _batches(loader), [], deque[Any]()
    next(batches)
    began = time.monotonic()
    for _ in range(count):
        asked = time.monotonic()
        batch = next(batches)
        waits.append(time.monotonic() - asked)
        arrays = {name: x[None] for name, x in batch.arrays.items()}
        placed = place_batch(arrays, side.model.mesh)
        side.state, info = side.step(side.state, placed)
        pending.append(info)
        while len(pending) > 1:
            float(pending.popleft()["loss"][0])
    for info in pending:
        float(info["loss"][0])
    return {
        "fed": (time.monotonic() - began) / count,
        "wait": float(np.mean(waits)),
        "sample bytes": batch.x.nbytes + batch.y.nbytes,
    }


def tables(results: Results) -> Sequence[str | Table]:
    """One row."""
    rows = []
    for item, result in results.items():
        if "fed" not in result:
            continue
        keys = ("step", "read", "fed", "wait")
        rows.append(
            [
                item,
                f"{result['sample bytes'] / 1e6:.0f}",
                str(result["threads"]),
                *(f"{1e3 * result[key]:.1f}" for key in keys),
                f"{result['step'] / result['fed']:.0%}",
            ]
        )
    header = ["data", "MB a sample", "threads", "step alone, ms", "read alone, ms"]
    header += ["step with its read, ms", "of which it waits, ms", "of the step's rate"]
    return [Table("Loader", header, rows)]


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    return (
        f"step alone {1e3 * result['step']:.1f} ms, with its read "
        f"{1e3 * result['fed']:.1f} ms"
    )
