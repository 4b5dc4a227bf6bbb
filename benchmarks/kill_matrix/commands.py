"""Kills of other commands than `train`, which are started again until they end."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from benchmarks.kill_matrix.compare import broken_files, weight_differences
from benchmarks.kill_matrix.matrix import Matrix
from benchmarks.kill_matrix.moments import WRITING
from benchmarks.kill_matrix.starts import Started, Trigger, start
from credit_jax.checkpoint.store import FOLDER
from credit_jax.config.yaml_file import read_yaml
from credit_jax.parallel.processes.watch import RESUME

_SECONDS = 900.0
_PER_SERIES = 5  # kills, after which the command may end
# Files that tell of the call, or when it was.
_OF_THE_CALL = ("forecast.json", "package.json", "README.md", "digests.json")
# Campaigns of three groups, one date of each for either device.
_DATES = tuple(f"2000-01-{day}" for day in range(12, 18))


@dataclass(frozen=True)
class Command:
    """A command whose kills are tried.

    Attributes:
        name: subcommand of `credit-jax`.
        options: options of the matrix and of the folder to write.
        is_atomic: whether the folder appears complete or not at all.
        processes: numbers of processes that it is started with.
    """

    name: str
    options: Callable[[Matrix, Path], Sequence[str]]
    is_atomic: bool = True
    processes: Sequence[int] = (1,)


def _straight(matrix: Matrix) -> list[str]:
    return ["--checkpoint", str(matrix.folder / "straight")]


def _preprocess(matrix: Matrix, out: Path) -> Sequence[str]:
    section = read_yaml(matrix.config)
    normalize = section["preblocks"]["per_step"]["normalize"]
    normalize["args"] = {f"{k}_path": str(out / f"{k}.nc") for k in ("mean", "std")}
    path = matrix.folder / f"{out.name}.yml"
    path.write_text(yaml.safe_dump(section, sort_keys=False))
    # A kill between the two files leaves one of them, which is then moved aside.
    return ["--config", str(path), "--overwrite"]


def _forecast(kind: str) -> Callable[[Matrix, Path], Sequence[str]]:
    def options(matrix: Matrix, out: Path) -> Sequence[str]:
        dates = [word for date in _DATES for word in ("--init-time", date)]
        # Not model.yml of the run, which names the files of the folder that the run
        # was copied from.
        arguments = ["--config", matrix.config, *_straight(matrix), *dates]
        arguments += ["--cache", str(matrix.folder / "cache"), "--steps", "3"]
        arguments += ["--format", kind, "--resume"]
        arguments += ["--parallelism", "data=ddp", "--devices", "2"]
        return [*arguments, "--out", str(out)]

    return options


COMMANDS = {
    "preprocess": Command("preprocess", _preprocess, is_atomic=False),
    "convert to torch": Command(
        "convert",
        lambda matrix, out: ["--to", "torch", *_straight(matrix), "--out", str(out)],
    ),
    "convert to jax": Command(
        "convert",
        lambda matrix, out: [
            *("--to", "jax", "--out", str(out)),
            *("--checkpoint", str(matrix.folder / "straight_convert_to_torch")),
        ],
    ),
    "package": Command(
        "package", lambda matrix, out: [*_straight(matrix), "--out", str(out)]
    ),
    "campaign in NetCDF": Command("forecast", _forecast("netcdf"), False, (1, 2)),
    "campaign in Zarr": Command("forecast", _forecast("zarr"), False, (1, 2)),
}


def kill_command(matrix: Matrix, name: str, num_kills: int, seed: int) -> None:
    """Kills a command again and again, and compares what it writes in the end.

    Args:
        matrix: matrix whose undisturbed run has ended.
        name: key of `COMMANDS`.
        num_kills: number of kills of the command together with those of
            `matrix.commands`.
        seed: seed of the moments.
    """
    word = name.lower().replace(" ", "_")
    straight = matrix.folder / f"straight_{word}"
    count, seconds = _undisturbed(matrix, name, straight)
    done = [series for series in matrix.commands if series["name"] == name]
    left = num_kills - sum(series["kills"] for series in done)
    number = len(done)
    while left > 0:
        chosen = random.Random(f"{seed} {name} {number}")
        out = matrix.folder / f"killed_{word}"
        shutil.rmtree(out, ignore_errors=True)
        kills, problems = 0, list[str]()
        for _ in range(min(_PER_SERIES, left)):
            is_killed, lines = _kill(matrix, name, out, chosen, count, seconds)
            problems += lines
            if not is_killed:
                break
            kills += 1
            if COMMANDS[name].is_atomic and out.exists():
                break  # it is compared below
        if not (COMMANDS[name].is_atomic and out.exists()):
            started = _start(matrix, name, out)
            if code := started.code(0, _SECONDS):
                problems.append(f"the last start ended with {code}")
            started.end()
        problems += differences(straight, out)
        problems += [
            f"left behind: {path.name}"
            for path in (*out.rglob(".*partial*"), *out.parent.glob(f".{out.name}*"))
        ]
        matrix.add_command({"name": name, "kills": kills, "problems": problems})
        left -= kills
        number += 1


def _undisturbed(matrix: Matrix, name: str, out: Path) -> tuple[int, float]:
    """Runs a command once; returns its number of events and its seconds.

    Raises:
        RuntimeError: it ended with an error.
    """
    marker = out.with_suffix(".events")
    if not marker.exists():
        shutil.rmtree(out, ignore_errors=True)
        began = time.monotonic()
        started = _start(matrix, name, out, number=0)
        count = started.told.recv() if started.told.poll(_SECONDS) else None
        if (code := started.code(0, _SECONDS)) != 0 or count is None:
            raise RuntimeError(f"{name}: the undisturbed start ended with {code}")
        marker.write_text(f"{count} {time.monotonic() - began}")
    count, seconds = marker.read_text().split()
    return int(count), float(seconds)


def _start(
    matrix: Matrix,
    name: str,
    out: Path,
    number: int | None = None,
    processes: int = 1,
    at: int = 0,
) -> Started:
    command = COMMANDS[name]
    below = str(out.parent / out.name)
    hidden = str(out.parent / f".{out.name}")
    trigger = Trigger(WRITING, number or 0, True, at, (below, hidden))
    return start(
        command.options(matrix, out),
        processes,
        out.with_suffix(".log"),
        command=command.name,
        trigger=None if number is None else trigger,
    )


def _kill(
    matrix: Matrix,
    name: str,
    out: Path,
    chosen: random.Random,
    count: int,
    seconds: float,
) -> tuple[bool, list[str]]:
    """Starts and kills a command.

    Returns:
        Whether it was killed before it ended, and problems.
    """
    processes = chosen.choice(COMMANDS[name].processes)
    at = chosen.randrange(processes)
    at_a_file = chosen.random() < 0.7
    # Each process writes its part of the files.
    number = chosen.randint(1, max(1, count // processes)) if at_a_file else None
    started = _start(matrix, name, out, number, processes, at)
    numbers = range(processes)
    try:
        if at_a_file:
            deadline = time.monotonic() + _SECONDS
            while not started.told.poll(0.05) and not started.is_over:
                if time.monotonic() > deadline:
                    return False, ["no file was written, and it did not end"]
            started.wait_until_stopped(at, 60.0)
            if chosen.random() < 0.3:  # it may go on, and be stopped again
                started.signal(at, signal.SIGCONT)
                time.sleep(chosen.uniform(0, 0.2))
        else:
            time.sleep(chosen.uniform(0.2, 1.0) * seconds)
        codes = [started.code(n, 0) for n in numbers]
        if started.is_over:
            wrong = [f"ended with {codes} before the kill"] if any(codes) else []
            return False, wrong
        killed = [*numbers] if chosen.random() < 0.4 else [chosen.choice(numbers)]
        for n in killed:
            started.signal(n, signal.SIGKILL)
        started.signal(at, signal.SIGCONT)
        for n in numbers:
            started.code(n, 90.0)
        # One that has not met the killed process fails after --connect-timeout.
        good = (0, RESUME) if at_a_file else (0, RESUME, 2)
        return True, started.problems_of_others(killed, good)
    finally:
        started.end()


def differences(expected: Path, actual: Path) -> list[str]:
    """Compares the values in two folders that a command has written.

    Args:
        expected: folder of an undisturbed start.
        actual: folder of a start that was killed.

    Returns:
        One line for each difference.
    """
    if (expected / FOLDER).is_dir():
        return [*broken_files(actual), *weight_differences(expected, actual)]
    names = [_files_of(folder) for folder in (expected, actual)]
    if names[0] - names[1]:
        return [f"missing files: {sorted(names[0] - names[1])[:5]}"]
    return [
        f"{name} differs"
        for name in sorted(names[0])
        if Path(name).name not in _OF_THE_CALL
        and not _equal(expected / name, actual / name)
    ]


def _files_of(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in paths}


def _equal(one: Path, two: Path) -> bool:
    if one.suffix == ".nc":
        with xr.open_dataset(one) as a, xr.open_dataset(two) as b:
            return a.drop_attrs().identical(b.drop_attrs())
    if one.suffix == ".pt":
        return _equal_trees(*map(_torch, (one, two)))
    # Configs name the folder that they are in.
    folders = [str(path.parent).encode() for path in (one, two)]
    contents = [path.read_bytes() for path in (one, two)]
    return contents[0].replace(folders[0], folders[1]) == contents[1]


def _torch(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=True)


def _equal_trees(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(
            _equal_trees(one[key], two[key]) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_equal_trees, one, two))
    return bool(np.array_equal(np.asarray(one), np.asarray(two)))
