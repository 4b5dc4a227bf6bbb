"""Compiles the programs that are timed later, into the caches, beside other work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import bounds, step
from benchmarks.gpu.records import Results, Setting
from benchmarks.report import Table
from benchmarks.timing import take_turns

TITLE = "Compilation, beside other processes"
TRACED = "credit_jax, to trace"


def items(setting: Setting) -> list[str]:
    """The sides whose programs are compiled, and the program that is traced."""
    sides = [step.KERNELS, step.COMPILED, TRACED, step.PLAIN]
    return sides[:1] if setting.rehearse else sides


environment = step.environment


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns the seconds that the programs of a side take the first time."""
    result: dict[str, Any] = {}
    traced = item == TRACED
    sides = bounds.traced_side(setting) if traced else step.side_of(item, setting)
    with sides as side:
        # Ours compiles a step without running it: others use the memory, too.
        train = side.train if item in step.TORCH else side.peak_memory
        for name, call in (("step", train), ("forward", side.infer)):
            result[name] = take_turns({"": call}, warmup=0, rounds=1)[""].median
            save(result)
    return result


def tables(results: Results) -> Sequence[str | Table]:
    """One row a side."""
    rows = [
        [item, *(f"{result[k]:.0f}" for k in ("step", "forward") if k in result)]
        for item, result in results.items()
    ]
    rows = [[*row, *[""] * (3 - len(row))] for row in rows]
    return [Table("Compilation", ["", "step, s", "forward, s"], rows)]


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    return f"step {result['step']:.0f} s, forward {result['forward']:.0f} s"
