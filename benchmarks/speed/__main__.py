"""Speed of credit_jax against CREDIT eager and CREDIT under torch.compile.

    python -m benchmarks.speed --size demo|1deg|025deg_block [--model NAME] --json FILE

All sides have the same weights, batch, threads and machine; they take turns, so that
other load slows all of them. A ratio above 1 means that credit_jax is faster. On a GPU
the command also reports memory and the fraction of the measured matmul ceiling that the
training step reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# Spinning threads would slow the other side.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# Both sides share the memory of a GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import torch
from rich.console import Console

from benchmarks.recipe import recipe
from benchmarks.report import REPORTS, Table, write_report
from benchmarks.speed.cases import KIN, MODEL_TYPES, SIZES, initial_weights, make_case
from benchmarks.speed.jax_side import JaxSide
from benchmarks.speed.torch_side import TorchSide
from benchmarks.timing import Times, ratio, take_turns
from credit_jax.models.conversion import to_state_dict
from credit_jax.parallel.compiler import compile_sooner

OURS, EAGER, COMPILED = "credit_jax", "eager", "compiled"
ROLLOUT_STEPS = 10
NO_ROLLOUT = "left out: the model has other inputs, which no prediction gives"
# Goals by backend and job: ratios to eager and to torch.compile.
GOALS = {
    "cpu": {"train_step": "2.0, 1.3", "inference": "1.6, 1.1"},
    "gpu": {"train_step": "-, 1.5"},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Times one size; returns the contents of the JSON."""
    options = _parse(argv)
    compile_sooner()
    torch.set_num_threads(options.threads)
    console = Console()
    result = measure(options, console)
    if options.json:
        text = json.dumps(result, indent=2, default=str)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.report:
        model = "" if options.model is None else f"{options.model}_"
        name = f"speed_{model}{options.size}_{jax.default_backend()}"
        name += "" if options.dtype == "float32" else f"_{options.dtype}"
        path = write_report(name, _sections(result), result, options.report)
        console.print(f"report: {path}")
    return result


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Times all jobs of one size."""
    case = make_case(options.size, options.model)
    params, model_state = initial_weights(case)
    state = to_state_dict(case.model_def, params, model_state)
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    ours = JaxSide(case, params, model_state, dtype=options.dtype)
    theirs = {
        name: TorchSide(
            case, state, device=device, dtype=options.dtype, compiled=name == COMPILED
        )
        for name in ([EAGER] if options.no_compile else [EAGER, COMPILED])
    }
    config = {
        "size": options.size,
        "dtype": options.dtype,
        "threads": options.threads,
        "rounds": options.rounds,
        "batch": len(case.x),
        "parameters": case.model_def.num_parameters,
        "model": case.block,
    }
    result: dict[str, Any] = {"recipe": recipe(config)}
    # Inference first, because a training step donates its state.
    for name, call in _JOBS.items():
        if name == "rollout" and not case.is_of_one_field:
            console.print(f"{name:12} {NO_ROLLOUT}")
            continue
        result[name] = _job(ours, theirs, call, options)
        console.print(_line(name, result[name]))
    if options.trace:
        with jax.profiler.trace(str(options.trace)):
            ours.train()
        console.print(f"trace of a training step: {options.trace}")
    kin = options.model in (None, *KIN)
    result["ops"] = _operations(ours, theirs[EAGER], options) if kin else []
    if device != "cpu":
        result |= accelerator_use(ours, theirs, result["train_step"]["medians"])
    return result


_JOBS: Mapping[str, Callable[[Any], object]] = {
    "inference": lambda side: side.infer(),
    "rollout": lambda side: side.rollout(ROLLOUT_STEPS),
    "train_step": lambda side: side.train(),
}


def _job(
    ours: JaxSide,
    theirs: Mapping[str, TorchSide],
    call: Callable[[Any], object],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Times one job on all sides; a side that fails is reported with its error.

    The first call of each side, which compiles, does not count.
    """
    call(ours)
    sides: dict[str, Any] = {OURS: ours}
    errors = {}
    for name, side in theirs.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(side)
            sides[name] = side
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    times = take_turns(
        {name: lambda side=side: call(side) for name, side in sides.items()},
        warmup=options.warmup,
        rounds=options.rounds,
        limit=options.limit,
    )
    return _summary(times, errors)


def _summary(by_side: Mapping[str, Times], errors: Mapping[str, str]) -> dict[str, Any]:
    ratios = {
        f"ratio_{name}": ratio(by_side[name], by_side[OURS])
        if name in by_side
        else None
        for name in (EAGER, COMPILED)
    }
    return {
        **ratios,
        "medians": {name: times.median for name, times in by_side.items()},
        "spread": {name: times.spread for name, times in by_side.items()},
        "rounds": {name: len(times.seconds) for name, times in by_side.items()},
        **({"errors": dict(errors)} if errors else {}),
    }


def _operations(
    ours: JaxSide, theirs: TorchSide, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Times each part of the model alone: forward, and forward with backward."""
    mine, credits = ours.operations(), theirs.operations()
    rows = []
    for name, (forward, both) in mine.items():
        if not fnmatch(name, options.ops):
            continue
        row: dict[str, Any] = {"op": name}
        pairs = (("forward", forward, 0), ("forward_backward", both, 1))
        for kind, run, index in pairs:
            by_side = take_turns(
                {OURS: run, EAGER: credits[name][index]},
                warmup=1,
                rounds=options.op_rounds,
                limit=options.limit / 10,
            )
            row[kind] = {
                "ratio_eager": ratio(by_side[EAGER], by_side[OURS]),
                "medians": {side: times.median for side, times in by_side.items()},
            }
        rows.append(row)
    return rows


def accelerator_use(
    ours: JaxSide,
    theirs: Mapping[str, TorchSide],
    seconds: Mapping[str, float],
    *,
    size: int = 8192,
) -> dict[str, Any]:
    """Memory of a training step, and its share of the matmul ceiling.

    Args:
        ours, theirs: the sides.
        seconds: seconds of a training step, by side; sides that are not in it failed.
        size: size of the square matrices that define the ceiling.
    """
    ceiling = matmul_ceiling(ours.model.parallel_config.precision.compute, size)
    work = ours.floating_point_operations()
    ran = {OURS: ours, **{name: theirs[name] for name in theirs if name in seconds}}
    return {
        "memory": {name: side.peak_memory() for name, side in ran.items()},
        "matmul_ceiling": ceiling,
        "mfu": work / seconds[OURS] / ceiling,
    }


def matmul_ceiling(dtype: Any, size: int, repeats: int = 10) -> float:
    """Measured floating-point operations per second of large square products."""
    x = jnp.ones((size, size), dtype)
    product = jax.jit(lambda x: x @ x / size)

    def chain() -> None:
        y = x
        for _ in range(repeats):
            y = product(y)
        y.block_until_ready()

    times = take_turns({OURS: chain}, warmup=1, rounds=5)
    return 2.0 * size**3 * repeats / times[OURS].median


def _line(name: str, result: Mapping[str, Any]) -> str:
    ratios = [
        f"{result[key]:.2f} x {key.removeprefix('ratio_')}"
        for key in ("ratio_eager", "ratio_compiled")
        if result[key] is not None
    ]
    seconds = result["medians"][OURS]
    spread = result["spread"][OURS]
    return f"{name:12} {' and '.join(ratios)}; {seconds:.3f} s, spread {spread:.0%}"


def _sections(result: Mapping[str, Any]) -> list[str | Table]:
    """The report as markdown."""
    config = result["recipe"]["config"]
    model, options = config["model"]["type"], f"--size {config['size']}"
    options += "" if model == "wxformer" else f" --model {model}"
    rows, ran = [], [name for name in _JOBS if name in result]
    for name in ran:
        measurement = result[name]
        goal = GOALS.get(jax.default_backend(), {}).get(name, "-")
        cells = [
            "-" if measurement[key] is None else f"{measurement[key]:.2f}"
            for key in ("ratio_eager", "ratio_compiled")
        ]
        spread = ", ".join(
            f"{side} {part:.0%} of {measurement['rounds'][side]}"
            for side, part in measurement["spread"].items()
        )
        rows.append([name, *cells, goal, f"{measurement['medians'][OURS]:.3f}", spread])
    parts = [
        [
            row["op"],
            *(
                f"{row[kind]['medians'][side] * 1000:.1f}"
                for kind in ("forward", "forward_backward")
                for side in (OURS, EAGER)
            ),
            *(
                f"{row[kind]['ratio_eager']:.2f}"
                for kind in ("forward", "forward_backward")
            ),
        ]
        for row in result["ops"]
    ]
    errors = [
        f"- {name}, {side}: {text}"
        for name in ran
        for side, text in result[name].get("errors", {}).items()
    ]
    more = {k: result[k] for k in ("memory", "mfu", "matmul_ceiling") if k in result}
    return [
        f"# Speed of {model}, {config['size']}, {config['dtype']}",
        f"`python -m benchmarks.speed {options}`: credit_jax beside "
        "serial CREDIT, same weights and batch, taking turns in one process. A ratio "
        "above 1 means that credit_jax is faster; the spread is the distance of the "
        "quartiles, of so many rounds.",
        Table(
            "Whole steps",
            ["", "x eager", "x torch.compile", "goals", "seconds", "spread"],
            rows,
        ),
        *([] if "rollout" in ran else [f"The rollout is {NO_ROLLOUT}."]),
        *(["What failed:\n\n" + "\n".join(errors)] if errors else []),
        *([f"On the accelerator: {json.dumps(more)}"] if more else []),
        *(_parts(parts) if parts else []),
    ]


def _parts(rows: list[list[str]]) -> list[str | Table]:
    return [
        "Each part alone, milliseconds (CREDIT's layers divide by their spectral norm "
        "at every call, ours once a step):",
        Table(
            "Parts",
            ["", "fwd", "CREDIT", "fwd+bwd", "CREDIT", "x fwd", "x fwd+bwd"],
            rows,
        ),
    ]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed")
    add = parser.add_argument
    add("--size", choices=tuple(SIZES), default="demo")
    add("--model", choices=MODEL_TYPES, help="another model, of demo or tiny size")
    add("--json", metavar="FILE", help="where the numbers go")
    add("--report", type=Path, metavar="DIR", help=f"write a report, into {REPORTS}")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of torch")
    add("--rounds", type=int, default=15)
    add("--op-rounds", type=int, default=7)
    add("--warmup", type=int, default=1, help="rounds that do not count")
    add("--ops", default="*", metavar="PATTERN", help="parts to time alone; '' is none")
    add("--limit", type=float, default=120.0, help="seconds a job may take")
    add(
        "--trace", type=Path, metavar="DIR", help="profile one training step, for xprof"
    )
    add("--no-compile", action="store_true", help="without torch.compile")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
