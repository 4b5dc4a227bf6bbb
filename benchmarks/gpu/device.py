"""The device, the versions, and the rates that it reaches: copies and products."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.records import Results, Setting
from benchmarks.recipe import recipe
from benchmarks.report import Table
from benchmarks.timing import take_turns

TITLE = "Device, versions and measured ceilings"
# Side of the square products and elements of the copy, and those of a rehearsal.
_SIDES, _COPIED = (8192, 256), (2**29, 2**20)
# Calls between two looks at the clock.
_CALLS = 10
_QUERY = "name,driver_version,memory.total,clocks.max.sm,power.limit"


def items(setting: Setting) -> list[str]:
    """One item."""
    del setting
    return ["ceilings"]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns the recipe, a line of the driver, and rates in bytes or FLOP a second."""
    del item
    result: dict[str, Any] = {"recipe": recipe({}), "driver": _driver()}
    save(result)
    side, copied = _SIDES[setting.rehearse], _COPIED[setting.rehearse]
    x = jax.random.normal(jax.random.key(0), (copied,), jnp.float32)
    # Negation reads and writes every element; a copy could be left out.
    seconds = seconds_of(jax.jit(jnp.negative), x)
    result["copy"] = 2 * x.nbytes / seconds
    save(result)
    for dtype, precision in (
        ("bfloat16", "default"),
        ("float32", "highest"),
        ("float32", "default"),
    ):
        draw = jax.random.normal(jax.random.key(1), (side, side), jnp.float32)
        a = (draw / side**0.5).astype(dtype)
        product = jax.jit(lambda a, p=precision: jnp.matmul(a, a, precision=p))
        seconds = seconds_of(product, a)
        result[f"{dtype}, {precision}"] = 2.0 * side**3 / seconds
        save(result)
    return result


def seconds_of(function: Callable[..., Any], *arrays: Any, rounds: int = 5) -> float:
    """Returns the median seconds of one call of several that are queued together."""

    def chain() -> None:
        for _ in range(_CALLS):
            y = function(*arrays)
        jax.block_until_ready(y)

    times = take_turns({"": chain}, warmup=1, rounds=rounds, limit=20)[""]
    return times.median / _CALLS


def _driver() -> str:
    """One line of nvidia-smi, or "" where there is none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def tables(results: Results) -> Sequence[str | Table]:
    """The rates."""
    sections: list[str | Table] = []
    for result in results.values():
        rows = [
            [name, f"{result[name] / 1e12:.2f}", unit]
            for name, unit in (
                ("copy", "TB/s, read and written"),
                ("bfloat16, default", "TFLOP/s"),
                ("float32, highest", "TFLOP/s"),
                ("float32, default", "TFLOP/s"),
            )
            if name in result
        ]
        if result.get("driver"):
            sections.append(f"    {result['driver']}".replace("\n", "\n    "))
        sections.append(Table("Ceilings", ["", "rate", ""], rows))
    return sections


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    return (
        f"{result['copy'] / 1e12:.2f} TB/s, bfloat16 "
        f"{result['bfloat16, default'] / 1e12:.0f} TFLOP/s"
    )
