"""Own kernels beside XLA's programs for the same operations, without a device.

    python -m benchmarks.accelerator.own_kernels --target a100

Every case of the table is compiled twice for a GPU: with own kernels, whose machine
code is optimized and accounted as in `limits`, and by its definition, whose kernels are
taken to be perfect: each needs the time of the roofline and a launch. Nothing runs on a
device or is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.accelerator import ptx
from benchmarks.accelerator.cases import Case, cases
from benchmarks.accelerator.compile_cases import DEFINITION, KERNEL, function_name
from benchmarks.accelerator.kernels import CUSTOM, Kernel, kernels
from benchmarks.accelerator.limits import (
    Launch,
    Limits,
    Resources,
    launches,
    limits,
    resources,
)
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.roofline import kernel_seconds
from benchmarks.accelerator.targets import ROOT, TARGETS, WHEELS, Target
from benchmarks.report import Table, add_out_option, publish

# Programs of a grid whose instructions are followed, and the number of instructions
# after which no further one is.
_SAMPLES, _FOLLOWED = 16, 100_000
# An own kernel stays where its operation takes less than this part of XLA's time.
AHEAD = 0.9

Job = tuple[str, str]


def compile_cases(
    target: Target, jobs: Sequence[Job], folder: Path, sides: Sequence[str]
) -> None:
    """Compiles cases, each side in a separate process.

    Args:
        target: a GPU.
        jobs: name of the case and dtype.
        folder: folder of the texts; it is emptied before.
        sides: `KERNEL`, `DEFINITION`, or both.

    Raises:
        RuntimeError: XLA could not compile one.
    """
    target.install()
    shutil.rmtree(folder, ignore_errors=True)
    for side in sides:
        below = folder / side
        below.mkdir(parents=True)
        environment = target.environment(optimize=side == KERNEL)
        environment["XLA_FLAGS"] += f" --xla_dump_to={below}"
        to_compile = [(*job, side) for job in jobs]
        command = [sys.executable, "-m", "benchmarks.accelerator.compile_cases"]
        command += [json.dumps(to_compile), target.name, str(below)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = "\n".join(done.stderr.splitlines()[-15:])
            raise RuntimeError(f"not compiled for {target.name}, {side}:\n{last}")


def account_of_case(
    case: Case, dtype: str, folder: Path, sides: Sequence[str], target: Target
) -> dict[str, Any]:
    """Returns the account of one case.

    Args:
        case, dtype: what was compiled.
        folder, sides: as for `compile_cases`.
        target: a GPU.

    Returns:
        "kernels": the limits of every own kernel; "seconds" of the program with them,
        value and gradients, launches included; of the definition, if it was compiled,
        "definition_seconds", and "ratio", the first divided by the second.
    """
    ours = _Dump(folder / KERNEL, function_name(case.name, dtype, KERNEL))
    entries, seconds = [], 0.0
    for kernel in ours.kernels():
        limited = ours.limits_of(kernel, target)
        if limited is not None:
            entries.append(_entry(limited, kernel))
        taken = kernel_seconds(kernel, target) if limited is None else limited.seconds
        seconds += taken + target.launch
    account: dict[str, Any] = {
        "case": case.name,
        "operation": case.operation,
        "dtype": dtype,
        "kernels": entries,
        "seconds": seconds,
    }
    if DEFINITION not in sides:
        return account
    theirs = _Dump(folder / DEFINITION, function_name(case.name, dtype, DEFINITION))
    definition = sum(
        kernel_seconds(kernel, target) + target.launch for kernel in theirs.kernels()
    )
    return account | {
        "definition_seconds": definition,
        "ratio": seconds / definition,
    }


class _Dump:
    """What XLA wrote about one compiled function.

    Args of the constructor:
        folder: of all texts.
        name: of the function.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def kernels(self) -> list[Kernel]:
        """Every kernel of the program, in the order of its schedule."""
        return kernels(parse((self._folder / f"{self._name}.hlo").read_text()))

    def limits_of(self, kernel: Kernel, target: Target) -> Limits | None:
        """Returns the limits of an own kernel; None for one of XLA."""
        if kernel.kind != CUSTOM:
            return None
        launch = self._launches[kernel.name]
        path = self._code[launch.name]
        code = ptx.parse(path.read_text())
        return limits(
            launch,
            _assembled(path, target)[launch.name],
            _average(code, launch.grid),
            kernel.bytes,
            target,
            pipelined=code.is_pipelined,
        )

    @cached_property
    def _launches(self) -> dict[str, Launch]:
        """Launches by the name of the instruction in the program."""
        texts = [
            self._text(f"thunk_{name}.txt").read_text()
            for name in ("sequence", "metadata")
        ]
        return launches(*texts)

    @cached_property
    def _code(self) -> dict[str, Path]:
        """Files of PTX by the name of the kernel."""
        files = self._folder.glob(f"*.jit_{self._name}.*.ptx")
        pairs = ((ptx.entry(path.read_text()), path) for path in files)
        return {name: path for name, path in pairs if name}

    def _text(self, suffix: str) -> Path:
        (path,) = self._folder.glob(f"*.jit_{self._name}.{suffix}")
        return path


def _assembled(path: Path, target: Target) -> dict[str, Resources]:
    """Assembles PTX as for the device, and returns what ptxas says of each kernel."""
    assert target.chip is not None
    ptxas = WHEELS / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    command = [ptxas, "-v", "--gpu-name", target.chip.architecture, path]
    done = subprocess.run(
        [*map(str, command), "-o", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ptxas refuses {path.name}:\n{done.stderr}")
    return resources(done.stderr)


def _average(code: ptx.Kernel, grid: Sequence[int]) -> ptx.Work:
    """The work of a warp, averaged over programs evenly spaced in the grid."""
    total, count = ptx.Work(), 0
    programs = math.prod(grid)
    for number in range(0, programs, -(-programs // _SAMPLES)):
        place = []
        for length in grid:
            number, position = divmod(number, length)
            place.append(position)
        total, count = total.plus(code.work(place), 1), count + 1
        if total.instructions > _FOLLOWED:
            break
    return ptx.Work().plus(total, 1 / count)


def _entry(limited: Limits, kernel: Kernel) -> dict[str, Any]:
    return {
        "kernel": limited.launch.name,
        "programs": limited.launch.programs,
        "warps": limited.launch.warps,
        **asdict(limited.resources),
        "shared": limited.launch.shared + limited.resources.shared,
        "at_once": limited.at_once,
        "waves": limited.waves,
        "bytes": kernel.bytes,
        "flops": kernel.flops,
        "needs": limited.needs,
        "seconds": limited.seconds,
        "bound": limited.bound,
    }


def problems(
    accounts: Iterable[dict[str, Any]], older: Iterable[dict[str, Any]] | None
) -> list[str]:
    """Lists kernels that spill more than before, and operations that gain too little.

    Args:
        accounts: accounts of all cases.
        older: those of an older report; None allows any spills.
    """
    before = {
        (case["case"], case["dtype"], kernel["kernel"]): _spilled(kernel)
        for case in older or ()
        for kernel in case["kernels"]
    }
    lines = []
    for case in accounts:
        title = f"{case['case']}, {case['dtype']}"
        for kernel in case["kernels"]:
            spilled = _spilled(kernel)
            allowed = before.get((case["case"], case["dtype"], kernel["kernel"]), 0)
            if older is not None and spilled > allowed:
                lines.append(
                    f"{title}: {kernel['kernel']} spills {spilled} bytes a thread, and "
                    f"{allowed} in the older report; hold less in registers"
                )
        if case.get("ratio", 0.0) > AHEAD:
            lines.append(
                f"{title}: own kernels take {case['ratio']:.2f} times as long as XLA's "
                f"program, at most {AHEAD} is allowed; mend them, or leave the case to "
                "the definition"
            )
    return lines


def _spilled(kernel: dict[str, Any]) -> int:
    return kernel["spill_stores"] + kernel["spill_loads"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report; returns 1 if there are `problems`."""
    options = _parse(arguments)
    target, folder = TARGETS[options.target], options.programs / options.target
    sides = (KERNEL,) if options.no_definitions else (KERNEL, DEFINITION)
    # How much of its tiles a library fills is in no account: only a device judges that.
    counted = [case for case in cases("025deg") if case.operation != "conv2d"]
    table = [case for case in counted if options.cases in case.name]
    jobs = [(case, dtype) for case in table for dtype in case.dtypes]
    if not options.reuse:
        names = [(case.name, dtype) for case, dtype in jobs]
        compile_cases(target, names, folder, sides)
    accounts = [account_of_case(*job, folder, sides, target) for job in jobs]
    publish(
        options.name or f"own_kernels-{target.name}",
        _sections(accounts, target),
        {"target": target.name, "cases": accounts},
        config={"wheels": target.wheels},
        folder=options.out,
    )
    older = (
        json.loads(options.against.read_text())["cases"] if options.against else None
    )
    issues = problems(accounts, older)
    for problem in issues:
        print(problem, file=sys.stderr)
    return 1 if issues else 0


def _sections(accounts: Sequence[dict[str, Any]], target: Target) -> list[str | Table]:
    sections: list[str | Table] = [
        f"# The GPU kernels, compiled for {target.device}",
        _INTRO.format(target=target),
        _table_of_kernels(accounts),
    ]
    compared = [account for account in accounts if "ratio" in account]
    if compared:
        sections += [_COMPARED, _table_of_cases(compared)]
    return sections


def _table_of_kernels(accounts: Sequence[dict[str, Any]]) -> Table:
    needs = list(accounts[0]["kernels"][0]["needs"]) if accounts[0]["kernels"] else []
    header = ["kernel", "registers", "spills, B", "shared, KB", "programs an SM"]
    header += ["warps", "waves", "GB", "GFLOP", *(f"{name}, ms" for name in needs)]
    header += ["ms", "bound"]
    rows = [
        [
            f"{kernel['kernel'].split('_flops')[0].rstrip('0123456789').rstrip('_')}: "
            f"{account['case']}, {account['dtype']}",
            f"{kernel['registers']}",
            f"{_spilled(kernel)}",
            f"{kernel['shared'] / 1024:.0f}",
            f"{kernel['at_once']}",
            f"{kernel['warps']}",
            f"{kernel['waves']:.1f}",
            f"{kernel['bytes'] / 1e9:.3f}",
            f"{kernel['flops'] / 1e9:.1f}",
            *(f"{1e3 * seconds:.3f}" for seconds in kernel["needs"].values()),
            f"{1e3 * kernel['seconds']:.3f}",
            kernel["bound"],
        ]
        for account in accounts
        for kernel in account["kernels"]
    ]
    return Table("Kernels", header, rows)


def _table_of_cases(accounts: Sequence[dict[str, Any]]) -> Table:
    header = ["operation", "with own kernels, ms", "XLA's program, ms", "ratio"]
    rows = [
        [
            f"{account['case']}, {account['dtype']}",
            f"{1e3 * account['seconds']:.3f}",
            f"{1e3 * account['definition_seconds']:.3f}",
            f"{account['ratio']:.2f}",
        ]
        for account in accounts
    ]
    return Table("Operations", header, rows)


_INTRO = (
    "One launch of every own kernel at the sizes of the 0.25 degree model, forward and "
    "backward. Registers and spills are those of ptxas; times are needs of resources: "
    "bytes moved once / {target.bandwidth:.3g} B/s, bytes that instructions name / "
    "{target.chip.cache_bandwidth:.2g} B/s of the L2 cache, matrix operations with "
    "padding / {target.peak:.3g} a second, instructions of the PTX / four a clock and "
    "multiprocessor ({target.chip.count} at {target.chip.clock:.3g} Hz), special "
    "functions / {target.chip.special}. A kernel takes the longest of them, or, where "
    "too few programs share a multiprocessor to use its resources at the same time "
    "(latency), the sum of a program divided by their number; the multiprocessor with "
    "most programs takes longest. Nothing was run: no number here is a measurement."
)
_COMPARED = (
    "Value and gradients of whole operations, a launch of 2 us for every kernel. "
    "Kernels of XLA, in both programs, are taken to be perfect: bytes and operations "
    "at the speeds of the data sheet. That is to the disadvantage of own kernels."
)


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator.own_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    gpus = [name for name, target in TARGETS.items() if target.is_gpu]
    add("--target", choices=gpus, default="h100")
    add("--cases", default="", help="only those with this text in their name")
    add("--no-definitions", action="store_true", help="own kernels alone")
    add("--reuse", action="store_true", help="what was compiled before")
    add("--programs", type=Path, default=ROOT / ".cache" / "own_kernels")
    add("--name", help="of the report")
    add("--against", type=Path, help="an older report: fail where more is spilled")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
