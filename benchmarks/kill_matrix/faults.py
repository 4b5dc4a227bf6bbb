"""Faults other than a kill; each must end in a resume or in one readable error."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kill_matrix.compare import broken_files, left_files, losses
from benchmarks.kill_matrix.matrix import Matrix
from benchmarks.kill_matrix.moments import TRAINING, WITHIN_SAVE
from benchmarks.kill_matrix.starts import Started, Trigger, start
from credit_jax.checkpoint.store import FOLDER
from credit_jax.parallel.processes.watch import RESUME

_UPDATES, _FIRST_SAVES = 12, 4  # of a run, and of its first start
_SECONDS = 120.0
_SILENCE = 10.0  # seconds of silence after which a process counts as lost


@dataclass
class Trial:
    """A run under a fault.

    Attributes:
        matrix: matrix with the undisturbed run, options and folder.
        name: name of the run.
        count: processes.
        codes: exit codes under the fault.
        error: the error that was printed.
        seconds: seconds until all processes had ended.
        problems: one line each.
    """

    matrix: Matrix
    name: str
    count: int = 2
    codes: Sequence[int | None] = ()
    error: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.matrix.folder / self.name

    def start(
        self,
        *further: str,
        updates: int = _UPDATES,
        count: int | None = None,
        log: str = "log",
        **options: Any,
    ) -> Started:
        """Starts the run for `updates` updates; options are those of `start`."""
        arguments = self.matrix.options(self.name)
        sets = (f"epochs={updates // 6}", "skip_validation=true")
        arguments += [word for text in sets for word in ("--set", f"trainer.{text}")]
        path = self.matrix.folder / f"{self.name}.{log}"
        return start([*arguments, *further], count or self.count, path, **options)

    def end(self, started: Started) -> Sequence[int | None]:
        """Waits for the end of all processes; returns their exit codes."""
        codes = [
            started.code(number, _SECONDS) for number in range(len(started.processes))
        ]
        started.end()
        return codes

    def printed(self, log: str = "log", number: int = 0) -> str:
        path = self.matrix.folder / f"{self.name}.{log}.{number}"
        return path.read_text(errors="replace") if path.exists() else ""

    def check_text(self, text: str, pattern: str) -> None:
        """Checks that one error matching `pattern` was printed, without a traceback."""
        plain = " ".join(text.split())
        match = re.search(pattern, plain)
        if match is None:
            self.problems.append(f"nothing was printed like {pattern!r}")
        if "Traceback" in text:
            self.problems.append("a traceback was printed")
        if len(re.findall(r"(?m)^error: ", text)) > 1:
            self.problems.append("more than one error was printed")
        self.error = match[0] if match else ""

    def check_resumed(self) -> None:
        """Checks that the run can finish, with the losses of the undisturbed one."""
        codes = self.end(self.start(log="resumed"))
        if any(codes):
            self.problems.append(f"resuming ended with {codes}")
        straight = losses(self.matrix.folder / "straight")
        expected = {step: straight[step] for step in range(1, _UPDATES + 1)}
        if losses(self.folder) != expected:
            self.problems.append("other losses than the undisturbed run")
        self.problems += broken_files(self.folder) + left_files(self.folder)

    def expect(self, *codes: int) -> None:
        """Checks that each process ended with one of these codes."""
        if not set(self.codes) <= set(codes):
            self.problems.append(f"codes {self.codes} instead of {codes}")


Run = Callable[[Trial], None]


def _injected(fault: str, code: int, pattern: str) -> Run:
    """A fault within process 0 that ends the run with an error."""

    def run(trial: Trial) -> None:
        trial.codes = trial.end(trial.start(fault=fault))
        trial.expect(code)
        trial.check_text(trial.printed(), pattern)
        (trial.folder / FOLDER).chmod(0o755)

    return run


def _read_only(trial: Trial) -> None:
    trial.folder.mkdir()
    trial.folder.chmod(0o555)
    trial.codes = trial.end(trial.start(fault="become_nobody", count=1))
    trial.folder.chmod(0o755)
    trial.expect(2)
    trial.check_text(trial.printed(), r"error: .*cannot write to .*: Permission denied")


def _clock(trial: Trial) -> None:
    trial.codes = trial.end(trial.start(fault="clock_jumps"))
    trial.expect(0)


def _damaged(damage: Callable[[Path], None]) -> Run:
    """A fault that damages the largest file of the newest checkpoint."""

    def run(trial: Trial) -> None:
        trial.end(trial.start(updates=_UPDATES // 2))
        newest = max((p for p in (trial.folder / FOLDER).glob("[0-9]*")), key=_number)
        files = [path for path in newest.rglob("*") if path.is_file()]
        damage(max(files, key=lambda path: path.stat().st_size))
        trial.codes = trial.end(trial.start(log="again"))
        trial.expect(0)
        trial.check_text(trial.printed("again"), r"not used: .*?: damaged, [\w ]+")

    return run


def _number(path: Path) -> int:
    return int(path.name)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in (len(content) // 3, len(content) // 2, len(content) - 9):
        content[place] ^= 4
    path.write_bytes(content)


def _stale(trial: Trial) -> None:
    trial.end(trial.start(updates=_UPDATES // 2))
    stale = trial.folder / FOLDER / "8.orbax-checkpoint-tmp"
    (stale / "weights.orbax-checkpoint-tmp").mkdir(parents=True)
    (stale / "weights.orbax-checkpoint-tmp" / "d").write_bytes(b"half")
    trial.codes = trial.end(trial.start(log="again"))
    trial.expect(0)
    if stale.exists():
        trial.problems.append(f"{stale.name} is still there")


def _cache(trial: Trial) -> None:
    """All compiled programs of the cache are truncated, as by a kill within a write."""
    trial.end(trial.start(updates=_UPDATES // 2))
    cache = trial.folder.with_suffix(".cache")
    cache.mkdir()
    for path in (trial.matrix.folder / "cache").glob("*-cache"):
        (cache / path.name).write_bytes(path.read_bytes()[:100])
    trial.codes = trial.end(trial.start("--cache", str(cache), log="again"))
    trial.expect(0)


def _two_runs(trial: Trial) -> None:
    first = trial.start(trigger=Trigger(TRAINING, 1, stop=True))
    first.told.poll(_SECONDS)
    trial.codes = trial.end(trial.start(count=1, log="second"))
    first.signal(0, signal.SIGCONT)
    trial.expect(2)
    trial.check_text(
        trial.printed("second"), r"error: .*a run is going on in this folder"
    )
    if any(codes := trial.end(first)):
        trial.problems.append(f"the first run ended with {codes}")


def _signals(*sent: signal.Signals, to: int, target_code: int, others: int) -> Run:
    """Signals to one process of four during training."""

    def run(trial: Trial) -> None:
        started = trial.start(trigger=Trigger(TRAINING, 3))
        started.told.poll(_SECONDS)
        began = time.monotonic()
        for number in sent:
            started.signal(to, number)
            time.sleep(0.05)
        # Signals that come within one call of a program are one for Python.
        while target_code < 0 and started.code(to, 0.05) is None:
            started.signal(to, sent[-1])
        trial.codes = trial.end(started)
        trial.seconds = time.monotonic() - began
        for number, code in enumerate(trial.codes):
            expected = target_code if number == to else others
            if code != expected:
                trial.problems.append(
                    f"process {number} ended with {code}, not {expected}"
                )
        reason = r"Stopped by SIG\w+ after step \d+"
        gone = rf"error: process {to} is gone \(.*?\)"
        trial.check_text(trial.printed(), reason if target_code == RESUME else gone)

    return run


def _silent(moment: str, event: int) -> Run:
    """Process 1 of four stops, as if its host were lost, and goes on too late.

    The others end, and the run is resumed; then process 1 continues in the middle of
    what it did, and must end without an effect on the resumed run.
    """

    def run(trial: Trial) -> None:
        beat = ("--heartbeat-timeout", f"{_SILENCE:g}")
        started = trial.start(*beat, trigger=Trigger(moment, event, True, 1))
        started.told.poll(_SECONDS)
        started.wait_until_stopped(1, _SECONDS)
        began = time.monotonic()
        trial.codes = [started.code(number, _SECONDS) for number in (0, 2, 3)]
        trial.seconds = time.monotonic() - began
        trial.expect(RESUME)
        trial.check_text(
            trial.printed(), r"error: process 1 is gone \(it was silent.*?\)"
        )
        resumed = trial.start(count=2, log="again", trigger=Trigger(TRAINING, 1))
        resumed.told.poll(_SECONDS)
        started.signal(1, signal.SIGCONT)
        if (code := started.code(1, _SECONDS)) != RESUME:
            trial.problems.append(f"process 1 ended with {code} when it went on")
        started.end()
        if any(codes := trial.end(resumed)):
            trial.problems.append(f"the resumed run ended with {codes}")

    return run


FAULTS: dict[str, tuple[int, Run]] = {
    "full disk": (
        2,
        _injected("full_disk", 1, r"error: .*could not be written: No space left"),
    ),
    "read-only folder": (1, _read_only),
    "folder that becomes read-only": (
        2,
        _injected(
            "folder_becomes_read_only",
            1,
            r"error: .*could not be written: Permission denied",
        ),
    ),
    "background write that fails": (
        2,
        _injected(
            "background_write_fails",
            1,
            r"error: .*could not be written: Input/output error",
        ),
    ),
    "truncated array in the newest checkpoint": (2, _damaged(_truncate)),
    "three bits flipped in the newest checkpoint": (2, _damaged(_flip)),
    "stale temporary folder": (2, _stale),
    "compiled programs cut short": (1, _cache),
    "two runs on one folder": (2, _two_runs),
    "clock that jumps": (2, _clock),
    "SIGTERM to process 2 of 4": (
        4,
        _signals(signal.SIGTERM, to=2, target_code=RESUME, others=RESUME),
    ),
    "SIGUSR1 to process 0 of 4": (
        4,
        _signals(signal.SIGUSR1, to=0, target_code=RESUME, others=RESUME),
    ),
    "SIGTERM twice to process 1 of 4": (
        4,
        _signals(
            signal.SIGTERM,
            signal.SIGTERM,
            to=1,
            target_code=-signal.SIGTERM,
            others=RESUME,
        ),
    ),
    "lost process": (4, _silent(TRAINING, 3)),
    "process lost within a save": (4, _silent(WITHIN_SAVE, 8)),
}


def try_fault(matrix: Matrix, name: str) -> Trial:
    """Trains under a fault, resumes, and compares with the undisturbed run.

    Args:
        matrix: matrix whose undisturbed run has ended.
        name: key of `FAULTS`.
    """
    count, run = FAULTS[name]
    trial = Trial(matrix, f"fault_{re.sub(r'[^a-z0-9]+', '_', name.lower())}", count)
    began = time.monotonic()
    run(trial)
    trial.seconds = trial.seconds or time.monotonic() - began
    trial.check_resumed()
    matrix.add_fault(
        {
            "name": name,
            "codes": [*trial.codes],
            "error": trial.error,
            "seconds": trial.seconds,
            "problems": trial.problems,
        }
    )
    return trial
