"""The report of the matrix: kills by moment and processes, runs, faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kill_matrix.matrix import DEVICES, MESH, TOLERANCE, Kill, Matrix
from benchmarks.recipe import recipe
from benchmarks.report import Table, write_report


def report(matrix: Matrix, folder: Path, config: Mapping[str, Any]) -> Path:
    """Writes `kill_matrix.md` and `.json`; returns the path of the first.

    Args:
        matrix: matrix with the results so far.
        folder: folder of the report.
        config: config of the runs.
    """
    kills, problems = matrix.kills, matrix.problems
    others = sum(series["kills"] for series in matrix.commands)
    head = (
        "# Runs that are killed again and again\n\n"
        f"{len(kills) + others} kills, {len(problems)} problems: {len(kills)} in "
        f"{len(matrix.runs)} runs of a small form of the demo (gloo on CPU), {others} "
        "of other commands. Each kill is SIGKILL to one or all processes; the "
        "run is started again with `--resume if-any` on another number of processes, "
        "and in every other run with other devices, of which it chooses the mesh and "
        "keeps its batches. While it saves, removes old "
        "checkpoints or writes its log, one process is stopped at one of these "
        "operations and killed there, or one of the others is. In two of five kills "
        "one process gets SIGSTOP first and SIGCONT up to 4 s later, before or after "
        "the kill. A run on all devices must "
        "end with the losses, the log and the weights of the undisturbed run bitwise, "
        f"one that lost some with its losses to {TOLERANCE:g}; after every kill all "
        "checkpoints must be whole; processes that were not killed must end by "
        "themselves with code 75, and name the killed one.\n\n"
        f"The undisturbed run is on {MESH}, one process."
    )
    data = {
        "recipe": recipe(config),
        "problems": problems,
        "kills": [asdict(kill) for kill in kills],
        "runs": matrix.runs,
        "faults": matrix.faults,
        "commands": matrix.commands,
        "starts": matrix.starts,
    }
    # No path of the machine.
    data = json.loads(json.dumps(data).replace(str(matrix.folder), "FOLDER"))
    problems = data["problems"]
    sections = [
        head,
        "## Kills",
        _counts("moment", kills, lambda kill: kill.moment),
        _counts("devices", kills, lambda kill: str(kill.devices)),
        _counts("SIGSTOP and SIGCONT", kills, _pause),
        _ends(kills),
        "## Runs",
        _runs(matrix.runs),
        "## Other commands",
        "Each is killed at one of its operations on files, or at any time, and started "
        "again up to five times, campaigns on one or two processes; what it has "
        "written at the end is compared with an undisturbed start bitwise, and after "
        "every kill what appears as a whole must be whole.",
        _commands(data["commands"]),
        "## Other faults",
        _faults(data["faults"]),
        "## Problems",
        "\n".join(f"- {line}" for line in problems) or "None.",
        "## Starts of the matrix",
        _starts(matrix.starts),
    ]
    return write_report("kill_matrix", sections, data, folder)


def _starts(starts: Sequence[Mapping[str, Any]]) -> Table:
    header = ["seed", "date", "commit"]
    rows = [[str(begun[key]) for key in header] for begun in starts]
    return Table("Starts", header, rows)


def _counts(name: str, kills: Sequence[Kill], key: Callable[[Kill], str]) -> Table:
    counts = sorted({n for processes in DEVICES.values() for n in processes})
    rows = []
    for value in dict.fromkeys(map(key, kills)):
        group = [kill for kill in kills if key(kill) == value]
        numbers = [sum(k.processes == n for k in group) for n in counts]
        everyone = sum(len(k.killed) == k.processes for k in group)
        rows.append([value, *map(str, [*numbers, len(group), everyone])])
    header = [name, *(f"{n} processes" for n in counts), "kills", "of all processes"]
    return Table(f"Kills by {name}", header, rows)


def _pause(kill: Kill) -> str:
    if kill.paused is None:
        return "none"
    return "kill in between" if kill.while_paused else "before the kill"


def _commands(commands: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for name in dict.fromkeys(series["name"] for series in commands):
        group = [series for series in commands if series["name"] == name]
        counts = (sum(s["kills"] for s in group), len(group))
        problems = sum(len(s["problems"]) for s in group)
        rows.append([name, *map(str, (*counts, problems))])
    return Table("Commands", ["command", "kills", "ends", "problems"], rows)


def _ends(kills: Sequence[Kill]) -> str:
    """How long processes ran on that were not killed."""
    group = [k for k in kills if len(k.killed) < k.processes and k.moment != "starting"]
    if not group:
        return "Each kill was of all processes."
    seconds = sorted(kill.seconds for kill in group)
    back = sorted(kill.back for kill in kills if kill.back is not None)
    first = (
        f" From {len(back)} starts to their first update, with programs in the cache: "
        f"{back[len(back) // 2]:.1f} s (median), {back[-1]:.1f} s at most."
        if back
        else ""
    )
    return (
        f"In {len(group)} kills of one of several processes that had met, the others "
        f"had ended {seconds[len(seconds) // 2]:.1f} s later (median), "
        f"{seconds[-1]:.1f} s at most, on a machine shared with other work.{first}"
    )


def _runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            "all" if run["all devices"] else "other numbers",
            str(run["kills"]),
            str(run["updates"]),
            f"{run['difference']:.2g}",
            str(len(run["problems"])),
        ]
        for run in runs
        if run["kills"]
    ]
    header = ["devices", "kills", "updates", "largest difference of a loss", "problems"]
    return Table("Runs", header, rows)


def _faults(faults: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            fault["name"],
            " ".join(map(str, fault["codes"])),
            fault["error"].replace("|", "\\|") or "none",
            f"{fault['seconds']:.0f}",
            "; ".join(fault["problems"]) or "bitwise",
        ]
        for fault in faults
    ]
    header = ["fault", "exit codes", "error or note", "seconds", "after a resume"]
    return Table("Faults", header, rows)
