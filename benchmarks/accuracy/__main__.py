"""Errors of credit_jax against CREDIT, and of CREDIT against itself.

    python -m benchmarks.accuracy [--short | --others [--keep]] [--models wxformer ...]
        [--meshes 1 dp2 domain3 ...] [--steps 100] [--rollout 10]

The reference is CREDIT's own trainer on one process with one thread, in float32. Every
other run has its weights and its global batches: CREDIT with two threads, with fsdp2
and with domain=2 on two processes, under bfloat16 autocast; credit_jax on each mesh,
and in bfloat16. Writes reports/accuracy.md, .json and .png, with --short accuracy-short
instead; exits with status 1 if float32 is not within tolerance. With --keep the rows of
other models in the report are kept. benchmarks/README.md explains the report.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.accuracy.case import ROWS, Case, case_config, credit_case
from benchmarks.accuracy.credit_run import (
    CreditRun,
    CreditWay,
    credit_run,
    watched,
    write_data,
)
from benchmarks.accuracy.errors import TOLERANCES, errors_of
from benchmarks.accuracy.mesh_run import MeshRun, run_mesh
from benchmarks.accuracy.network_run import network_run
from benchmarks.accuracy.plot import plot
from benchmarks.accuracy.report import (
    OURS,
    Line,
    date_of,
    earlier_rows,
    rich_table,
    sections,
)
from benchmarks.meshes import num_devices
from benchmarks.recipe import recipe
from benchmarks.report import add_out_option, write_report
from benchmarks.small_models import SEVERAL, WIDE, placed
from credit_jax.models.conversion import to_state_dict
from credit_jax.models.registry import build
from credit_jax.parallel.compiler import compile_quickly
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.training.display import print_table

# The models of released weights; `--others` runs the rest of `ROWS`.
RELEASED = ("wxformer", "crossformer", "camulator")
MESHES = ("1", "dp2", "tp2", "domain2", "domain3", "dp2xtp2xdomain2")
SHORT_MESHES = ("1", "domain3", "dp2xtp2xdomain2")
STEPS, SHORT_STEPS = 100, 20
BATCHES_PER_EPOCH = 20

# Other settings of runs of CREDIT.
EXTRA_WAYS: Mapping[str, CreditWay] = MappingProxyType(
    {
        "CREDIT, 2 threads": CreditWay(threads=2),
        "CREDIT, fsdp2 on 2 processes": CreditWay(data=2),
        "CREDIT, domain2 on 2 processes": CreditWay(domain=2),
    }
)
CREDIT_BFLOAT16 = "CREDIT, bfloat16 autocast"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything, prints the table, writes the report.

    Returns:
        0, or 1 if a float32 run of credit_jax is not within tolerance.
    """
    options = _parse(arguments)
    if not options.optimize:
        compile_quickly()
    ensure_devices(max(map(num_devices, options.meshes)))
    # A pipe has no terminal width.
    console = Console(width=None if sys.stdout.isatty() else 160)
    lines, jobs = [], {}
    for model in options.models:
        jobs[model] = _job(options, model)
        lines += _run_model(options, model, jobs[model], console)
    print_table(rich_table(lines), console)
    _write(options, lines, jobs, console)
    failed = [line for line in lines if line.above()]
    for line in failed:
        console.print(f"above tolerance: {line.model}, {line.name}: {line.above()}")
    return 1 if failed else 0


def _job(options: Any, model: str, *, rows: int | None = None) -> dict[str, Any]:
    return case_config(
        rows or ROWS[model],
        options.steps,
        options.batch,
        model=model,
        batches_per_epoch=BATCHES_PER_EPOCH,
    )


def _in_bfloat16(options: Any, model: str) -> bool:
    """Whether there are rows of bfloat16, which autocast of float64 would leave out."""
    return options.bfloat16 and model not in WIDE


def _run_model(
    options: Any, model: str, config: dict[str, Any], console: Console
) -> list[Line]:
    """Runs the reference, then CREDIT's other settings and the meshes of credit_jax."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(1) as beside,
    ):
        folder = Path(scratch)
        console.print(f"{model}: CREDIT on one process ...")
        if model in SEVERAL:
            latitude = np.linspace(90, -90, ROWS[model])
            serial = network_run(config, rollout=options.rollout)
            lines = _network_lines
        else:
            latitude = write_data(folder, ROWS[model], waves=True)
            config = placed(config, folder)
            serial = _serial(config, folder, options)
            lines = _credit_lines
        credit_lines = beside.submit(
            lambda: list(lines(options, model, config, folder, serial))
        )
        model_def = build(config["model"])
        case = credit_case(
            model_def,
            serial.initial,
            serial.x,
            serial.y,
            latitude,
            trained=serial.final,
            further=serial.further,
        )
        ours = list(_our_lines(options, model, config, case, serial, console))
        console.print(f"{model}: waiting for CREDIT's other runs ...")
        return credit_lines.result() + ours


def _serial(config: dict[str, Any], folder: Path, options: Any) -> CreditRun:
    run = credit_run(config, folder, rollout=options.rollout)
    if isinstance(run, str):
        raise RuntimeError(f"CREDIT on one process failed: {run}")
    return run


def _credit_lines(
    options: Any, model: str, config: dict[str, Any], folder: Path, serial: CreditRun
) -> Iterator[Line]:
    """CREDIT's differences from itself, also on an even grid for domain parallelism."""
    if _in_bfloat16(options, model):
        way = CreditWay(bfloat16=True)
        run = _credit(config, folder, way, options)
        yield _credit_line(model, CREDIT_BFLOAT16, run, serial, "bfloat16")
    for name, way in EXTRA_WAYS.items() if options.own else ():
        run = _credit(config, folder, way, options)
        yield _credit_line(model, name, run, serial)
        rows = ROWS[model]
        if not options.short and rows % way.domain:
            even = folder / "even"
            even.mkdir()
            write_data(even, rows - 1, waves=True)
            job = _job(options, model, rows=rows - 1)
            base = _serial(job, even, options)
            run = _credit(job, even, way, options)
            yield _credit_line(model, f"{name}, {rows - 1} rows", run, base)


def _network_lines(
    options: Any, model: str, config: dict[str, Any], folder: Path, serial: CreditRun
) -> Iterator[Line]:
    """Differences of CREDIT from itself, for a network that its trainer cannot run."""
    del folder
    named = {k: way for k, way in EXTRA_WAYS.items() if way.num_processes == 1}
    ways = [(k, way, "float32") for k, way in named.items() if options.own]
    if _in_bfloat16(options, model):
        ways.insert(0, (CREDIT_BFLOAT16, CreditWay(bfloat16=True), "bfloat16"))
    for name, way, dtype in ways:
        run = network_run(
            config, way, rollout=options.rollout, rollout_from=serial.final
        )
        yield _credit_line(model, name, run, serial, dtype)


def _credit(
    config: dict[str, Any], folder: Path, way: CreditWay, options: Any
) -> CreditRun | str:
    """A run that rolls out from the end of the serial one, or its error."""
    start = watched(folder, CreditWay()) / "final.npz"
    try:
        return credit_run(
            config, folder, way, rollout=options.rollout, rollout_from=start
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)


def _credit_line(
    model: str, name: str, run: CreditRun | str, base: CreditRun, dtype: str = "float32"
) -> Line:
    if isinstance(run, str):
        return Line(model, name, dtype, run)
    if run.weights != base.weights or not np.array_equal(run.x, base.x):
        return Line(model, name, dtype, "began with other weights or other batches")
    # By position, because CREDIT's domain axis changes names.
    if len(run.gradients) != len(base.gradients):
        return Line(model, name, dtype, "has gradients of other parameters")
    named = dict(zip(base.gradients, run.gradients.values(), strict=True))
    return Line(model, name, dtype, errors_of(run, named, base, base.gradients))


def _our_lines(
    options: Any,
    model: str,
    config: dict[str, Any],
    case: Case,
    serial: CreditRun,
    console: Console,
) -> Iterator[Line]:
    runs = [(mesh, "float32") for mesh in options.meshes]
    if _in_bfloat16(options, model):
        runs += [(mesh, "bfloat16") for mesh in options.bfloat16_meshes]
    for mesh, dtype in runs:
        where = "one device" if mesh == "1" else mesh
        console.print(f"{model}: credit_jax on {where} in {dtype} ...")
        policy = default_mp_policy() if dtype == "bfloat16" else None
        run = run_mesh(config, case, mesh, precision=policy, rollout=options.rollout)
        console.print(f"  {run.seconds:.0f} s, compilation included")
        name = f"{OURS}, {where}" + (", bfloat16" if policy else "")
        yield _our_line(model, name, dtype, run, config, case, serial)


def _our_line(
    model: str,
    name: str,
    dtype: str,
    run: MeshRun,
    config: dict[str, Any],
    case: Case,
    serial: CreditRun,
) -> Line:
    # Frozen parameters have no gradient, in CREDIT neither.
    zeros = {path: np.zeros_like(value) for path, value in case.params.items()}
    gradients = zeros | run.gradients
    named = to_state_dict(build(config["model"]), gradients, dict(case.model_state))
    errors = errors_of(run, named, serial, serial.gradients)
    return Line(model, name, dtype, errors, ours=True, seconds=run.seconds)


def _write(
    options: Any, lines: list[Line], jobs: dict[str, Any], console: Console
) -> None:
    config, name = _config(options), _name(options)
    now = date_of(recipe(config))
    lines = [replace(line, date=now) for line in lines]
    if options.keep:
        earlier, jobs_of_earlier = earlier_rows(_json(options), options.models, config)
        order = list(ROWS)
        lines = sorted(earlier + lines, key=lambda line: order.index(line.model))
        jobs = jobs_of_earlier | jobs
    data = {
        "recipe": recipe({**config, "jobs": jobs}),
        "tolerances": dict(TOLERANCES),
        "runs": [line.as_json() for line in lines],
    }
    text = sections(lines, options, picture=f"{name}.png")
    path = write_report(name, text, data, options.out)
    plot(lines, path.with_suffix(".png"))
    console.print(f"report: {path}")


def _config(options: Any) -> dict[str, Any]:
    """Options that the rows of a report depend on, besides their jobs."""
    names = ("meshes", "bfloat16_meshes", "steps", "batch", "rollout", "optimize")
    return {name: getattr(options, name) for name in names}


def _name(options: Any) -> str:
    name = "accuracy-short" if options.short else "accuracy"
    return "accuracy-others" if options.others else name


def _json(options: Any) -> Path:
    return options.out / f"{_name(options)}.json"


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy")
    add = parser.add_argument
    add("--short", action="store_true", help=f"{SHORT_STEPS} steps on 3 meshes")
    add("--models", nargs="+", choices=list(ROWS), help=f"default {' '.join(RELEASED)}")
    add("--others", action="store_true", help="the other models, short")
    add("--keep", action="store_true", help="rows of further models in the report stay")
    add("--meshes", nargs="+", metavar="MESH", help=f"default {' '.join(MESHES)}")
    add("--bfloat16-meshes", nargs="+", metavar="MESH", default=["1"])
    add("--steps", type=int, help=f"of training, default {STEPS}")
    add("--rollout", type=int, default=10, help="steps of the rollout, default 10")
    add("--batch", type=int, default=2, help="samples of a global batch, default 2")
    add("--no-own", dest="own", action="store_false", help="not CREDIT beside itself")
    add("--no-bfloat16", dest="bfloat16", action="store_false", help="float32 alone")
    add("--optimize", action="store_true", help="compile as training does, for longer")
    add_out_option(parser)
    options = parser.parse_args(arguments)
    options.short = options.short or options.others
    others = [model for model in ROWS if model not in RELEASED]
    options.models = options.models or (others if options.others else list(RELEASED))
    options.meshes = options.meshes or list(SHORT_MESHES if options.short else MESHES)
    options.steps = options.steps or (SHORT_STEPS if options.short else STEPS)
    if options.keep:
        try:
            earlier_rows(_json(options), options.models, _config(options))
        except ValueError as error:
            parser.error(str(error))
    if options.rollout < 1:
        parser.error(f"--rollout must be at least 1, got {options.rollout}")
    return options


if __name__ == "__main__":
    sys.exit(main())
