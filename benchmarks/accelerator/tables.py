"""Tables of the accounts of compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.accelerator.targets import Target
from benchmarks.report import Table

Account = dict[str, Any]


def totals(
    programs: Sequence[Account], credit: Account | None, target: Target
) -> Table:
    """One row a program: counts, step time at several launches, utilization, memory."""
    steps = programs[0]["steps"]
    header = [
        "program",
        "kernels",
        "TFLOP",
        "GB moved",
        "transfers wait, ms",
        *(f"step at {us} us, ms" if us != "0" else "step, ms" for us in steps),
        *(["compiler's estimate, ms"] if _estimated(programs) else []),
        "MFU at most",
        "memory, GB",
    ]
    rows = [
        [
            program["title"],
            *_counts(program, target, program["useful_flops"], _estimated(programs)),
            f"{program['memory']['peak'] / 1e9:.1f}",
        ]
        for program in programs
    ]
    if credit is not None:
        cells = _counts(credit, target, credit["flops"], _estimated(programs))
        rows.append(["CREDIT eager, 1, no remat", *cells, ""])
    return Table("Programs", header, rows)


def _estimated(programs: Sequence[Account]) -> bool:
    """Whether the compiler says how long a step takes: those of TPUs do."""
    return any(program.get("estimate_seconds") for program in programs)


def _counts(
    program: Account, target: Target, useful: float, estimated: bool
) -> list[str]:
    estimate = program.get("estimate_seconds")
    return [
        f"{program['kernels']:,}",
        f"{program['flops'] / 1e12:.2f}",
        f"{program['bytes'] / 1e9:.1f}",
        f"{1e3 * program['exposed_seconds']:.1f}",
        *(f"{1e3 * seconds:.1f}" for seconds in program["steps"].values()),
        *([f"{1e3 * estimate:.1f}" if estimate else ""] if estimated else []),
        f"{useful / target.peak / program['step']:.0%}",
    ]


def works(name: str, accounts: dict[str, Account], target: Target) -> Table:
    """One row a part, phase or kind: kernels, GB, TFLOP, ms."""
    header = [name, "kernels", "GB moved", "TFLOP", "ms, launches included"]
    rows = [
        [
            key,
            f"{work['kernels']:,}",
            f"{work['bytes'] / 1e9:.2f}",
            f"{work['flops'] / 1e12:.3f}",
            f"{1e3 * (work['seconds'] + work['kernels'] * target.launch):.2f}",
        ]
        for key, work in accounts.items()
    ]
    return Table(name, header, rows)


def parts_of_all(programs: Sequence[Account], target: Target) -> Table:
    """Milliseconds of every part, one column a program."""
    names = list(programs[0]["parts"])
    names += [n for p in programs for n in p["parts"] if n not in names]
    rows = []
    for name in dict.fromkeys(names):
        cells = []
        for program in programs:
            work = program["parts"].get(name)
            seconds = work["seconds"] + work["kernels"] * target.launch if work else 0.0
            cells.append(f"{1e3 * seconds:.2f}" if work else "")
        rows.append([name, *cells])
    return Table(
        "ms by part", ["part", *(program["title"] for program in programs)], rows
    )


def collectives(programs: Sequence[Account]) -> Table:
    """One row a mesh, kind and purpose of collectives."""
    header = [
        "program",
        "kind",
        "for",
        "number",
        "MB sent",
        "ms",
        "nothing beside",
        "kernels beside, median",
        "waits, ms",
    ]
    rows = [
        [
            program["title"],
            row["kind"],
            row["purpose"],
            f"{row['number']:,}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{1e3 * row['seconds']:.2f}",
            f"{row['nothing_beside']:,}",
            f"{row['median_kernels_beside']:.0f}",
            f"{1e3 * row['exposed_seconds']:.2f}",
        ]
        for program in programs
        for row in program["collectives"]
    ]
    return Table("Collectives", header, rows)


def longest(program: Account) -> Table:
    """The kernels that take longest."""
    header = ["kernel", "part", "phase", "runs", "GB a run", "TFLOP a run", "ms"]
    rows = [
        [
            f"{entry['kind']}: {entry['op_name'].rsplit('/', 1)[-1]}",
            entry["part"],
            entry["phase"],
            f"{entry['times']}",
            f"{entry['bytes'] / 1e9:.3f}",
            f"{entry['flops'] / 1e12:.3f}",
            f"{1e3 * entry['seconds']:.2f}",
        ]
        for entry in program["longest"]
    ]
    return Table("Longest kernels", header, rows)
