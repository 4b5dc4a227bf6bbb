"""Counts a training step that is compiled for an accelerator, without a device.

    python -m benchmarks.accelerator --target h100 --config 025deg --parallelism 1 dp8

XLA compiles the step as it would on the device; kernels, bytes and messages are counted
in its optimized program. Time is a lower bound from the data sheet. Nothing runs on a
device or is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from benchmarks.accelerator import tables
from benchmarks.accelerator.account import account, counted, grown, same_job
from benchmarks.accelerator.compile_step import Job, compile_job
from benchmarks.accelerator.float8 import float8_problems
from benchmarks.accelerator.targets import ROOT, TARGETS
from benchmarks.compiled_step import MODELS, model_block
from benchmarks.report import Table, add_out_option, publish
from credit_jax.parallel.params.remat import ACTIVATIONS

PROGRAMS = ROOT / ".cache" / "programs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report; returns 1 if a program grew beyond `--against`."""
    options = _parse(arguments)
    target, programs = TARGETS[options.target], []
    older = json.loads(options.against.read_text()) if options.against else None
    for job in _jobs(options):
        print(f"{job.title}, {options.target}", flush=True)
        compiled = compile_job(job, options.programs, reuse=options.reuse)
        programs.append(account(compiled))
    credit = _credit(options) if options.credit else None
    results = {"target": options.target, "programs": programs, "credit": credit}
    publish(
        options.name or f"accelerator_{Path(options.config).stem}",
        _sections(options, programs, credit),
        results,
        config={
            "model": model_block(options.config),
            "precision": options.precision,
            "samples": options.samples,
            "wheels": target.wheels,
        },
        folder=options.out,
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    problems = _problems(programs, older) if older else []
    problems += [line for program in programs for line in float8_problems(program)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _jobs(options: Any) -> list[Job]:
    """Jobs of the first mesh with all remat policies, of the others with the first."""
    first, *others = options.parallelism
    pairs = [(first, remat) for remat in options.remat]
    pairs += [(mesh, options.remat[0]) for mesh in others]
    return [
        Job(
            options.target,
            options.config,
            mesh,
            remat,
            options.precision,
            options.samples,
            options.float8,
            options.over_domain,
            _compiler(options),
        )
        for mesh, remat in pairs
    ]


def _compiler(options: Any) -> dict[str, Any]:
    """`trainer.compiler` of a config."""
    pairs = [option.partition("=") for option in options.compiler_option]
    chosen = {name: yaml.safe_load(value) for name, _, value in pairs}
    grouped = {"group_halos": True} if options.group_halos else {}
    return ({"options": chosen} if chosen else {}) | grouped


def _credit(options: Any) -> dict[str, Any]:
    """The account of CREDIT's eager step on one device."""
    from benchmarks.accelerator.torch_eager import eager_step

    model = model_block(options.config)
    return counted(eager_step(model, samples=options.samples), TARGETS[options.target])


def _sections(
    options: Any, programs: list[dict[str, Any]], credit: dict[str, Any] | None
) -> list[str | Table]:
    target, first = TARGETS[options.target], programs[0]
    sections: list[str | Table] = [
        f"# The training step of {Path(options.config).stem}, compiled for "
        f"{target.device}",
        _INTRO.format(target=target, samples=options.samples)
        + (_GPU if target.is_gpu else _TPU),
        tables.totals(programs, credit, target),
        f"## Where the time is\n\nBy part of the model, of {first['title']}; the "
        "innermost named scope counts, so that the norms of all parts are in norm.",
        tables.works("part", first["parts"], target),
        tables.works("phase", first["phases"], target),
        tables.works("kind", first["kinds"], target),
        "Milliseconds of every part in all programs:",
        tables.parts_of_all(programs, target),
        f"The kernels that take longest, of {first['title']}:",
        tables.longest(first),
    ]
    if "float8" in first:
        products, traced = first["float8_products"], first["float8_traced"]
        sections.append(_FLOAT8.format(**products, traced=traced))
    if any(program["collectives"] for program in programs):
        text = _COLLECTIVES.format(target=target)
        sections += [text, tables.collectives(programs)]
    if credit is not None:
        sections += [
            _CREDIT,
            tables.works("operation", _first(credit["kinds"]), target),
        ]
    return sections


def _first(kinds: dict[str, Any], count: int = 15) -> dict[str, Any]:
    return dict(list(kinds.items())[:count])


def _problems(programs: list[dict[str, Any]], report: dict[str, Any]) -> list[str]:
    lines, older = [], report["programs"]
    for program in programs:
        same = [other for other in older if same_job(program, other)]
        if same:
            lines += grown(program, same[0])
        else:
            lines.append(
                f"{program['title']}: the older report has no such program to compare "
                f"with; it has {', '.join(o.get('title', '?') for o in older)}"
            )
    then, now = report["recipe"]["versions"]["jaxlib"], version("jaxlib")
    if lines and then != now:
        lines.append(
            f"the older report is of jaxlib {then}, this one of {now}, whose XLA makes "
            "other kernels: compare with a report of the same jaxlib"
        )
    return lines


_INTRO = (
    "Counts of XLA's optimized program for one device, {samples} sample a data-"
    "parallel rank. A kernel takes max(bytes / {target.bandwidth:.3g} B/s, operations "
    "/ {target.peak:.3g} a second) and its launch; kernels run one after another. MFU "
    "counts the operations without recomputation, with a launch of "
    "{target.launch:.0e} s. Nothing was run: these are lower bounds of a step with "
    "perfect kernels."
)
_GPU = " Without a device XLA cannot try kernels and choose the fastest."
_TPU = (
    " Arrays in the chip's own memory count as no bytes, copies to and from it as "
    "kernels. The compiler's own estimate is that of its cost model for the kernels "
    "that it chose."
)
_FLOAT8 = (
    "## Float8\n\nDense layers with enough channels multiply float8 values: {products} "
    "products of two float8 operands in the program, {traced} in the trace; {mixed} of "
    "float8 and wider values, {widened} conversions of float8 values back to a wider "
    "dtype. Gradients of weights are products in bfloat16."
)
_COLLECTIVES = (
    "## Collectives\n\nOf one device: bytes sent with the algorithm that sends least, "
    "at {target.link:.3g} B/s and {target.message:.0e} s a message; how many have no "
    "kernel between their start and their end in the schedule, the median number of "
    "kernels there, and how long the device waits for what these do not hide."
)
_CREDIT = (
    "## CREDIT eager\n\nForward and backward of CREDIT's own model in the precision of "
    "its `trainer.amp` (weights float32, autocast to bfloat16 with CUDA's lists), "
    "every aten call counted on meta tensors: it reads its arguments and writes its "
    "results once, views are free. Clipping and AdamW count as if they were one "
    "kernel. torch.compile is not counted: see benchmarks/README.md."
)


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--target", choices=TARGETS, default="h100")
    add("--config", default="025deg", help=f"a YAML file, or {', '.join(MODELS)}")
    add("--parallelism", nargs="+", default=["1"], metavar="MESH")
    add("--remat", nargs="+", choices=ACTIVATIONS, default=["full"])
    add("--precision", default="bfloat16")
    add("--float8", type=int, metavar="N", help="layers from N channels in float8")
    add("--over-domain", action="store_true", help="domain axes split parameters, too")
    add("--compiler-option", action="append", default=[], metavar="NAME=VALUE")
    add("--group-halos", action="store_true", help="both directions in one launch")
    add("--samples", type=int, default=1, help="of each data-parallel rank")
    add("--credit", action="store_true", help="count CREDIT's eager step, too")
    add("--reuse", action="store_true", help="programs that were compiled before")
    add("--programs", type=Path, default=PROGRAMS, help="folder of the programs")
    add("--name", help="of the report")
    add("--json", type=Path, help="write the accounts to this file, too")
    add("--against", type=Path, help="an older report: fail where a program grew")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
