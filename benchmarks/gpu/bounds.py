"""Time of every part and kernel of the step beside its bound, the worst first.

The step is profiled, and each event of the device joined with the instruction of the
compiled program that launched it (`benchmarks.accelerator` counts what that must move
and compute). Bounds are of the ceilings that `device` measured. Then each operation
that has a kernel is timed with it and without.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

from benchmarks.accelerator.account import counts_of
from benchmarks.accelerator.kernels import Kernel, kernels
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.roofline import kernel_seconds, total
from benchmarks.accelerator.targets import TARGETS, Target
from benchmarks.gpu import kernels as cases
from benchmarks.gpu import records, step
from benchmarks.gpu.device import seconds_of
from benchmarks.gpu.records import Results, Setting
from benchmarks.gpu.turns import alone
from benchmarks.report import Table

TITLE = "Time beside the bound"
STEP = "the step"
# Kernels that CUDA replays as one graph would be one event of no instruction.
_OPTIONS = {"xla_gpu_graph_min_graph_size": 10**6}
# A part is near its bound within this factor; the goal is 70 % of the parts.
NEAR = 1.25
_STEPS, _WORST = 3, 60
_PASSES = ("forward", "with gradient")
_NO_PART = "no instruction of the step"


def items(setting: Setting) -> list[str]:
    """The step, then every operation with a kernel."""
    operations = cases.items(setting)
    return [STEP, *(operations[:1] if setting.rehearse else operations)]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns times and bounds of the step, or of an operation."""
    if item == STEP:
        return _step(setting, save)
    return _operation(item, setting)


def target_of(setting: Setting) -> Target:
    """The device, with the measured rates where there are any."""
    record = records.read(setting.out, "device", "ceilings") or {}
    result = record.get("result", {})
    target = TARGETS["a100" if "A100" in jax.devices()[0].device_kind else "h100"]
    return replace(
        target,
        bandwidth=result.get("copy", target.bandwidth),
        peak=result.get("bfloat16, default", target.peak),
    )


def traced_side(setting: Setting) -> AbstractContextManager[Any]:
    """Context manager: the side with kernels, compiled to be profiled."""
    options = {} if setting.rehearse else {"options": _OPTIONS}
    return step.side_of(step.KERNELS, setting, **options)


def _step(setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    folder = setting.scratch / "trace"
    shutil.rmtree(folder, ignore_errors=True)
    with traced_side(setting) as side:
        text = side.step.lower(side.state, side.batch).compile().as_text()
        side.train()
        with alone(setting):
            whole = seconds_of(side.train, rounds=3)
            with jax.profiler.trace(str(folder)):
                for _ in range(_STEPS):
                    side.train()
    measured = seconds_by_instruction(folder)
    # Whoever wants another join has what it takes.
    profile = setting.out / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    with gzip.open(profile / "step.hlo.gz", "wt") as file:
        file.write(text)
    (profile / "seconds.json").write_text(json.dumps(measured, indent=1) + "\n")
    result = joined(text, measured, target_of(setting)) | {"step": whole}
    save(result)
    return result


def seconds_by_instruction(folder: Path, steps: int = _STEPS) -> dict[str, float]:
    """Returns seconds of a step by instruction, from the newest profile in a folder.

    Events that no instruction launched, such as copies, are named by themselves, with
    "* " before.

    Args:
        folder: folder that `jax.profiler.trace` wrote.
        steps: number of steps in it.
    """
    path = max(folder.rglob("*.xplane.pb"), key=lambda p: p.stat().st_mtime)
    seconds: dict[str, float] = defaultdict(float)
    for event in _events(ProfileData.from_file(str(path))):
        stats = dict(event.stats)
        name = stats.get("hlo_op") or f"* {event.name}"
        seconds[str(name)] += event.duration_ns / 1e9 / steps
    return dict(seconds)


def _events(data: Any) -> Iterator[Any]:
    """Events of the streams of GPUs; of a CPU those of instructions alone."""
    planes = list(data.planes)
    gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    for plane in gpus or planes:
        for row in plane.lines:
            if gpus and "Stream" not in row.name:
                continue
            for event in row.events:
                if gpus or any(name == "hlo_op" for name, _ in event.stats):
                    yield event


def joined(text: str, measured: Mapping[str, float], target: Target) -> dict[str, Any]:
    """Returns measured and least seconds of each part and of the worst kernels.

    Args:
        text: the optimized program.
        measured: seconds of a step by instruction.
        target: rates of the device.
    """
    every = kernels(parse(text))
    known = {kernel.name for kernel in every}
    rest = {name: s for name, s in measured.items() if name not in known}
    rows = [_row(kernel, measured.get(kernel.name), target) for kernel in every]
    parts: dict[str, dict[str, float]] = {}
    for row in rows:
        part = parts.setdefault(
            f"{row['part']}, {row['phase']}",
            {"kernels": 0, "seconds": 0.0, "bound": 0.0},
        )
        part["kernels"] += row["times"]
        part["seconds"] += row["seconds"] or 0.0
        part["bound"] += row["bound"]
    rows.sort(key=lambda row: row["bound"] - (row["seconds"] or 0.0))
    unseen = [row["name"] for row in rows if row["seconds"] is None]
    return {
        "kernels": sum(measured.values()),
        "bound": sum(row["bound"] for row in rows),
        "parts": parts,
        "worst": rows[:_WORST],
        "rest": dict(sorted(rest.items(), key=lambda item: -item[1])[:_WORST]),
        "rest seconds": sum(rest.values()),
        "not seen": {"number": len(unseen), "of": len(rows), "first": unseen[:20]},
    }


def _row(kernel: Kernel, seconds: float | None, target: Target) -> dict[str, Any]:
    bound = kernel.times * (kernel_seconds(kernel, target) + target.launch)
    return {
        **counts_of(kernel),
        "seconds": seconds,
        "bound": bound,
        "op_name": "/".join(kernel.op_name.split("/")[-3:]),
    }


def _operation(item: str, setting: Setting) -> dict[str, Any]:
    """Seconds of an operation and its bound, with its kernel and without."""
    case, dtype = cases.case_of(item, setting)
    target = target_of(setting)
    arrays = [jnp.asarray(a) for a in case.arrays(seed=0, dtype=jnp.dtype(dtype))]
    sides = {"kernel": cases.kernel_of(case), "definition": case.definition}
    result: dict[str, Any] = {"case": case.name, "dtype": dtype}
    for name, function in sides.items():
        for what, each in (
            (_PASSES[0], function),
            (_PASSES[1], case.with_gradients(function)),
        ):
            # Float32 is float32, as in the models.
            with jax.default_matmul_precision("highest"):
                compiled: Any = jax.jit(each).lower(*arrays).compile()
            program = total(kernels(parse(compiled.as_text())), target)
            with alone(setting):
                seconds = seconds_of(compiled, *arrays, rounds=3)
            bound = program.step(target.launch)
            result[f"{name}, {what}"] = {"seconds": seconds, "bound": bound}
    return result


def tables(results: Results) -> Sequence[str | Table]:
    """Parts, kernels and operations, the worst first."""
    step = results.get(STEP, {})
    sections: list[str | Table] = []
    if "parts" in step:
        sections += _of_step(step)
    operations = [r for r in results.values() if "definition, with gradient" in r]
    if operations:
        sections += ["## Each operation with its kernel and without"]
        sections.append(_operations(operations))
    return sections


def _of_step(step: Mapping[str, Any]) -> list[str | Table]:
    parts = sorted(
        step["parts"].items(), key=lambda entry: entry[1]["bound"] - entry[1]["seconds"]
    )
    near = sum(part["seconds"] <= NEAR * part["bound"] for _, part in parts)
    seen = step["not seen"]
    intro = (
        f"A step takes {1e3 * step['step']:.2f} ms without CUDA graphs, its kernels "
        f"{1e3 * step['kernels']:.2f} ms. The bound is {1e3 * step['bound']:.2f} ms, "
        f"launches included. {near} of {len(parts)} parts are within {NEAR - 1:.0%} of "
        f"their bound. {1e3 * step['rest seconds']:.2f} ms are of {_NO_PART}; of "
        f"{seen['number']} of {seen['of']} instructions no event was seen."
    )
    rows = [
        [
            name,
            f"{part['kernels']}",
            f"{1e3 * part['seconds']:.3f}",
            f"{1e3 * part['bound']:.3f}",
            f"{part['seconds'] / part['bound']:.2f}" if part["bound"] else "",
        ]
        for name, part in parts
    ]
    worst = [
        [
            f"{row['kind']}: {row['op_name'].rsplit('/', 1)[-1]} ({row['name']})",
            f"{row['part']}, {row['phase']}",
            f"{row['times']}",
            "" if row["seconds"] is None else f"{1e3 * row['seconds']:.3f}",
            f"{1e3 * row['bound']:.3f}",
        ]
        for row in step["worst"]
    ]
    rest = [[name, f"{1e3 * s:.3f}"] for name, s in step["rest"].items()]
    return [
        intro,
        "## Parts",
        Table("Parts", ["part", "kernels", "ms", "bound, ms", "ratio"], rows),
        "## Kernels that lose most",
        Table("Kernels", ["kernel", "part", "runs", "ms", "bound, ms"], worst),
        *(
            [f"## Of {_NO_PART}", Table("Rest", ["event", "ms"], rest[:20])]
            if rest
            else []
        ),
    ]


def _operations(operations: Sequence[Mapping[str, Any]]) -> Table:

    def gain(row: Mapping[str, Any]) -> float:
        sides = (row[f"{side}, with gradient"] for side in ("definition", "kernel"))
        slow, fast = (side["seconds"] for side in sides)
        return slow / fast

    rows = [
        [
            f"{row['case']}, {row['dtype']}",
            *(
                f"{1e3 * row[f'{side}, {what}'][key]:.3f}"
                for what in _PASSES
                for side, key in (
                    ("kernel", "seconds"),
                    ("kernel", "bound"),
                    ("definition", "seconds"),
                )
            ),
            f"{gain(row):.2f}",
        ]
        for row in sorted(operations, key=gain)
    ]
    header = ["operation"]
    for what in _PASSES:
        header += [f"{what}, ms", "bound", "without kernel"]
    return Table("Operations", [*header, "x as fast, with gradient"], rows)


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    if "parts" in result:
        return (
            f"{1e3 * result['kernels']:.1f} ms of kernels, bound "
            f"{1e3 * result['bound']:.1f} ms"
        )
    slow, fast = (
        result[f"{side}, with gradient"]["seconds"] for side in ("definition", "kernel")
    )
    return f"{slow / fast:.2f} x as fast with its kernel"
