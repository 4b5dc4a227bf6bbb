"""Runs that are killed repeatedly, and their results.

Kills and runs are appended to `state.jsonl` of the folder as they end, so that the
matrix continues when it is restarted.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kill_matrix.compare import broken_files, compare_runs
from benchmarks.kill_matrix.moments import (
    DELETING,
    LOGGING,
    NUM_EVENTS,
    SAVING,
    TRAINING,
    VALIDATING,
    WITHIN_SAVE,
)
from benchmarks.kill_matrix.starts import Started, Trigger, start
from credit_jax.parallel.processes.watch import RESUME

STARTING = "starting"
# Most kills occur while files of a run change.
MOMENTS = (
    STARTING,
    TRAINING,
    VALIDATING,
    SAVING,
    SAVING,
    WITHIN_SAVE,
    WITHIN_SAVE,
    DELETING,
    LOGGING,
)
_LONGEST_PAUSE = 4.0  # seconds between SIGSTOP and SIGCONT
_LONGEST_START = 4.0  # seconds, on an idle machine
_START_SECONDS, _END_SECONDS = 900.0, 60.0
_CONNECT_SECONDS = 30.0
_STATE = "state.jsonl"
# Largest relative difference of losses with other devices.
TOLERANCE = 1e-6


# Devices of a start -> numbers of processes that share them. A run begins with all, as
# the undisturbed run and half of the others do at every start; with others it chooses
# the mesh itself.
ALL = 8
DEVICES = {ALL: (1, 2, 4), 6: (1, 2, 3), 4: (1, 2, 4), 3: (1, 3), 2: (1, 2)}
MESH = "fsdp 2 x tp 2 x domain 2"
_OPTIONS = ("data=fsdp2", "tensor=2", "domain=2")


@dataclass(frozen=True)
class Kill:
    """One start of a run, and how it was killed.

    Attributes:
        run: its number.
        devices: key of DEVICES.
        processes: number of processes of this start.
        killed: numbers of the processes that were.
        moment: what process `at` was doing.
        at: number of the process that was observed.
        event: the number of the event of that kind; 0 for none.
        paused: a process that got SIGSTOP, and SIGCONT seconds later; None for none.
        while_paused: whether the kill was in between.
        seconds: seconds until the other processes had ended by themselves.
        codes: exit codes of all processes.
        problems: one line each.
        back: seconds from its start to its first update, where that was observed.
    """

    run: int
    devices: int
    processes: int
    killed: Sequence[int]
    moment: str
    at: int
    event: int
    paused: int | None
    while_paused: bool
    seconds: float
    codes: Sequence[int]
    problems: Sequence[str]
    back: float | None = None


@dataclass
class Matrix:
    """Runs, kills and faults so far, stored in a folder.

    Attributes:
        config: config file, except for the mesh.
        folder: folder of everything that is written.
        per_run: maximum number of kills of a run.
        moments: what a process may be doing when it is killed.
        devices: keys of DEVICES to start on.
        kills: the kills so far.
        runs: results of the runs that have ended.
        faults: results of the other faults (`faults.try_fault`).
        commands: kills of other commands (`commands.kill_command`).
        starts: seed, date and commit of each start of the matrix.
    """

    config: str
    folder: Path
    per_run: int = 20
    moments: Sequence[str] = MOMENTS
    devices: Sequence[int] = tuple(DEVICES)
    kills: list[Kill] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    commands: list[dict[str, Any]] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    _is_straight_done: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _STATE
        for line in path.read_text().splitlines() if path.exists() else ():
            match json.loads(line):
                case {"kill": kill}:
                    self.kills.append(Kill(**kill))
                case {"run": run}:
                    self.runs.append(run)
                case {"fault": fault}:
                    self.faults.append(fault)
                case {"command": command}:
                    self.commands.append(command)
                case {"start": begun}:
                    self.starts.append(begun)
                case {"straight": _}:
                    self._is_straight_done = True

    @property
    def problems(self) -> list[str]:
        """All problems, one line each."""
        lines = [f"{kill}: {line}" for kill in self.kills for line in kill.problems]
        for ended in (*self.runs, *self.faults, *self.commands):
            name = ended.get("name", ended.get("run"))
            lines += [f"{name}: {line}" for line in ended["problems"]]
        return lines

    def go_on(self, num_kills: int, seed: int) -> None:
        """Makes kills until there are `num_kills`, and finishes the last run.

        Args:
            num_kills: number of kills of all runs together.
            seed: seed of devices, moments and processes.
        """
        self.train_undisturbed()
        while len(self.kills) < num_kills or self._is_within_run:
            self._kill_run(len(self.runs), num_kills, seed)

    @property
    def _is_within_run(self) -> bool:
        """Whether the run of the last kill has not ended."""
        return bool(self.kills) and self.kills[-1].run == len(self.runs)

    def train_undisturbed(self) -> None:
        """Trains the run that all others are compared with, unless that is done.

        Raises:
            RuntimeError: it ended with an error.
        """
        if self._is_straight_done:
            return
        codes = self._finish("straight", 1)
        if any(codes):
            raise RuntimeError(f"the undisturbed run ended with {codes}")
        self._is_straight_done = True
        self._note({"straight": True})

    def add_fault(self, fault: dict[str, Any]) -> None:
        """Records the result of a fault."""
        self.faults.append(fault)
        self._note({"fault": fault})

    def add_command(self, command: dict[str, Any]) -> None:
        """Records a series of kills of another command than `train`."""
        self.commands.append(command)
        self._note({"command": command})

    def add_start(self, begun: dict[str, Any]) -> None:
        """Records a start of the matrix."""
        self.starts.append(begun)
        self._note({"start": begun})

    def merge(self, path: Path) -> None:
        """Adds the results of a report, `kill_matrix.json`."""
        other = json.loads(path.read_text())
        self.kills += [Kill(**kill) for kill in other["kills"]]
        self.runs += other["runs"]
        self.faults += other["faults"]
        self.commands += other["commands"]
        self.starts += other["starts"]

    def _kill_run(self, run: int, num_kills: int, seed: int) -> None:
        """Kills a run repeatedly, finishes it, compares it with the undisturbed one."""
        same = run % 2 == 0
        count = sum(kill.run == run for kill in self.kills)
        while count < self.per_run and len(self.kills) < num_kills:
            chosen = random.Random(f"{seed} {run} {len(self.kills)}")
            kill = self._start_and_kill(run, same, chosen)
            if kill is None:
                break
            self.kills.append(kill)
            self._note({"kill": asdict(kill)})
            count += 1
        name = f"run{run}"
        codes = self._finish(name, 1 if len(self.devices) == 1 else 4)
        problems = [f"the last start ended with codes {codes}"] if any(codes) else []
        runs = [self.folder / part for part in ("straight", name)]
        comparison = compare_runs(*runs, tolerance=0.0 if same else TOLERANCE)
        comparison["problems"] = problems + comparison["problems"]
        self.runs.append(
            {"run": run, "all devices": same, "kills": count, **comparison}
        )
        self._note({"run": self.runs[-1]})

    def _note(self, record: Mapping[str, Any]) -> None:
        with (self.folder / _STATE).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def options(self, name: str, devices: int = ALL) -> list[str]:
        """Options of `train` for a run in this folder."""
        options = ["--config", self.config, "--resume", "if-any"]
        options += ["--save-loc", str(self.folder / name)]
        options += ["--cache", str(self.folder / "cache")]
        options += ["--connect-timeout", str(_CONNECT_SECONDS)]
        for option in _OPTIONS:
            options += ["--set", f"trainer.parallelism.{option}"]
        for option in ("train_batch_size=1", f"num_devices={ALL}"):
            options += ["--set", f"trainer.{option}"]
        return [*options, "--devices", str(devices)]

    def _finish(self, name: str, count: int) -> list[int | None]:
        """Trains to the end; returns the exit codes."""
        log = self.folder / f"{name}.log"
        started = start(self.options(name), count, log)
        codes = [started.code(n, 4 * _START_SECONDS) for n in range(count)]
        started.end()
        return codes

    def _start_and_kill(
        self, run: int, same: bool, chosen: random.Random
    ) -> Kill | None:
        """Starts and kills a run; returns None if it ended before the kill."""
        devices = ALL if same else chosen.choice(self.devices)
        moment = chosen.choice(self.moments)
        counts = DEVICES[devices]
        if moment == WITHIN_SAVE:
            counts = [count for count in counts if count > 1]
        count = chosen.choice(counts)
        event = chosen.randint(1, NUM_EVENTS.get(moment, 1))
        # Stopping keeps files half written or half removed until the kill.
        stop = moment in (SAVING, WITHIN_SAVE, DELETING, LOGGING)
        numbers = [*range(count)]
        at = chosen.choice(numbers) if moment == WITHIN_SAVE else 0
        killed = numbers if chosen.random() < 0.4 else [chosen.choice(numbers)]
        pauses = moment != STARTING and chosen.random() < 0.4
        paused = (at if stop else chosen.choice(numbers)) if pauses else None
        while_paused = pauses and paused not in killed and chosen.random() < 0.5
        launched = time.monotonic()
        started = start(
            self.options(f"run{run}", devices),
            count,
            self.folder / f"run{run}.log",
            trigger=None if moment == STARTING else Trigger(moment, event, stop, at),
        )
        problems: list[str] = []
        if moment == STARTING:
            time.sleep(chosen.uniform(0, _LONGEST_START))
        elif not _wait_for_moment(started):
            codes = [started.code(number, 0) for number in numbers]
            started.end()
            if codes == [0] * count:
                return None
            problems.append(f"ended with {codes} before anything was killed")
        is_first = moment == TRAINING and event == 1 and not problems
        back = time.monotonic() - launched if is_first else None
        if stop:
            started.wait_until_stopped(at, _END_SECONDS)
        else:
            time.sleep(chosen.uniform(0, 0.1))
        if paused is not None:
            started.signal(paused, signal.SIGSTOP)
            time.sleep(chosen.uniform(0, _LONGEST_PAUSE))
            problems += _ended(started, "while one was paused")
            if not while_paused:
                started.signal(paused, signal.SIGCONT)
                time.sleep(chosen.uniform(0, 0.3))
                if not any(started.code(number, 0) == 0 for number in numbers):
                    problems += _ended(started, "after SIGCONT")
        for number in killed:
            started.signal(number, signal.SIGKILL)
        if paused is not None and while_paused:
            time.sleep(chosen.uniform(0, _LONGEST_PAUSE))
            started.signal(paused, signal.SIGCONT)
        if stop and at not in killed:
            started.signal(at, signal.SIGCONT)
        began = time.monotonic()
        codes = [started.code(n, _END_SECONDS + _CONNECT_SECONDS) for n in numbers]
        seconds = time.monotonic() - began
        # A process that has not met the others yet fails after --connect-timeout.
        good = (0, RESUME, *([2] if moment == STARTING else []))
        problems += started.problems_of_others(killed, good)
        started.end()
        problems += broken_files(self.folder / f"run{run}")
        event = 0 if moment == STARTING else event
        codes = [-1 if code is None else code for code in codes]
        return Kill(
            run=run,
            devices=devices,
            processes=count,
            killed=killed,
            moment=moment,
            at=at,
            event=event,
            paused=paused,
            while_paused=while_paused,
            seconds=seconds,
            codes=codes,
            problems=problems,
            back=back,
        )


def _ended(started: Started, when: str) -> list[str]:
    """Says which processes have ended, though none was killed."""
    codes = [started.code(number, 0) for number in range(len(started.processes))]
    return [f"ended with {codes} {when}"] if any(c is not None for c in codes) else []


def _wait_for_moment(started: Started) -> bool:
    """Waits for the moment; False if the processes end before or do not reach it."""
    deadline = time.monotonic() + _START_SECONDS
    while not started.told.poll(0.05):
        if started.is_over or time.monotonic() > deadline:
            return started.told.poll()
    try:
        started.told.recv()
    except EOFError:
        for number in range(len(started.processes)):
            started.code(number, _END_SECONDS)
        return False
    return True
