"""200 training steps of the demo's model against the losses of a CPU.

The data are traveling waves, which are the same everywhere. Rounding differences grow
with every update; how far the CPU is from itself, with its plain definitions, stands
beside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import optax

from benchmarks.accuracy.errors import TOLERANCES
from benchmarks.compiled_step import CONFIGS
from benchmarks.gpu import step
from benchmarks.gpu.models import KERNELS, PLAIN
from benchmarks.gpu.records import Results, Setting
from benchmarks.report import Table
from benchmarks.speed.cases import Case, case_of, make_case
from credit_jax.config.yaml_file import read_yaml
from credit_jax.kernels import use_implementation
from credit_jax.parallel.placement import place_batch

TITLE = "Training steps of the demo's model against the losses of a CPU, float32"
LOSSES = Path(__file__).with_name("training.json")
# The demo's model, and CREDIT's of one layer for a rehearsal, with their updates.
DEMO, REHEARSED = "demo", "debugger"
STEPS = {DEMO: 200, REHEARSED: 10}
# Of the demo are 8; two give the same rounding in a quarter of the time of a CPU.
BATCH = 2
# Relative distances that are right: of the first loss, and of all (docs/numerics.md).
FIRST, ALL = TOLERANCES["forward"], TOLERANCES["loss"]
_LEADS = (1, 2, 5, 10, 20, 50, 100, 200)
_EVERY = 10


def items(setting: Setting) -> list[str]:
    """With the kernels of the device, and with the plain definitions."""
    return [KERNELS] if setting.rehearse else [KERNELS, PLAIN]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns the losses and their relative distances from those of the CPU."""
    model = REHEARSED if setting.rehearse else DEMO
    recorded = json.loads(LOSSES.read_text())["losses"][model]
    steps = len(recorded[KERNELS])
    measured = losses(
        model,
        item,
        steps,
        lambda so_far: save(compared(so_far, recorded) | {"model": model}),
    )
    return {"model": model, **compared(measured, recorded)}


def losses(
    model: str,
    way: str,
    steps: int,
    save: Callable[[list[float]], None] = lambda so_far: None,
) -> list[float]:
    """Trains; returns the loss of every step.

    Args:
        model: `DEMO` or `REHEARSED`.
        way: `models.KERNELS` or `models.PLAIN`.
        steps: number of updates.
        save: called with the losses so far, now and then.
    """
    if model == DEMO:
        case = case_of("demo", read_yaml(CONFIGS / "demo.yaml")["model"], BATCH)
    else:
        case = case_of("rehearsal", make_case("tiny", model).block, BATCH)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 20, 200, 1e-5)
    values: list[float] = []
    with use_implementation("xla") if way == PLAIN else nullcontext():
        side = step.jax_side(case, dtype="float32", schedule=schedule)
        for number in range(steps):
            arrays = waves(case, number)
            batch = {name: array[None] for name, array in arrays.items()}
            side.batch = place_batch(batch, side.model.mesh)
            values.append(side.train())
            if number % _EVERY == _EVERY - 1:
                save(values)
    return values


def waves(case: Case, number: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step: waves of every channel, and where they go.

    Args:
        case: the model.
        number: number of the step.
    """
    rows, columns = case.x.shape[-2:]
    lat, lon = np.linspace(-1, 1, rows)[:, None], np.arange(columns) / columns
    count = max(case.x.shape[1], case.y.shape[1])
    channel = np.arange(count)[None, :, None, None]
    start = (BATCH * number + np.arange(BATCH))[:, None, None, None]
    turns = (1 + channel % 5) * lon + (channel % 3) * lat + 0.618 * start
    narrow = np.cos(np.pi / 2 * lat) ** (1 + channel % 4)

    def at(time: float) -> np.ndarray:
        phase = turns + 0.02 * (1 + channel % 7) * time + 0.1 * channel
        return (narrow * np.sin(2 * np.pi * phase)).astype(np.float32)[:, :, None]

    return {"x": at(0)[:, : case.x.shape[1]], "y": at(1)[:, : case.y.shape[1]]}


def compared(
    measured: Sequence[float], recorded: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Returns losses with their distances from the CPU's, and the CPU's from itself.

    Args:
        measured: the losses of the first steps, or of all.
        recorded: those of the CPU with its kernels and with the plain definitions.
    """
    cpu, plain = (np.array(recorded[way][: len(measured)]) for way in (KERNELS, PLAIN))
    ours = np.array(measured[: len(cpu)])
    far, plain_error = np.abs(ours / cpu - 1), np.abs(plain / cpu - 1)
    # A loss that is not finite is not right.
    right = len(far) > 0 and bool(far[0] <= FIRST) and bool((far <= ALL).all())
    return {
        "right": right,
        "losses": list(measured),
        "cpu": cpu.tolist(),
        "distances": far.tolist(),
        "cpu's own": plain_error.tolist(),
    }


def tables(results: Results) -> Sequence[str | Table]:
    """Losses and distances at some steps."""
    sections: list[str | Table] = []
    for item, result in results.items():
        if not result.get("losses"):
            continue
        keys = ("cpu", "losses", "distances", "cpu's own")
        count = len(result["losses"])
        rows = [
            [
                str(lead),
                *(f"{result[key][lead - 1]:.6g}" for key in keys[:2]),
                *(f"{result[key][lead - 1]:.1e}" for key in keys[2:]),
            ]
            for lead in _LEADS
            if lead <= count
        ]
        header = ["step", "loss on the CPU", "here", "distance", "CPU from itself"]
        sections.append(
            f"With {item}, {count} steps: "
            + ("right" if result["right"] else "**wrong**")
            + f". Allowed are {FIRST:.0e} for the first loss, {ALL:.0e} for all."
        )
        sections.append(Table(f"Losses, {item}", header, rows))
    return sections


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    last, cpu_error = result["distances"][-1], result["cpu's own"][-1]
    word = "right" if result["right"] else "WRONG"
    return (
        f"{word}: at the end {last:.1e} from the CPU, which is {cpu_error:.1e} "
        "from itself"
    )
