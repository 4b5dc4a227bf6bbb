"""A run that is killed again and again: `python -m benchmarks.kill_matrix`.

Trains once undisturbed, then once more with SIGKILL of one or all of its processes at
random moments; each time it is started again, on a random mesh and number of processes,
with `--resume if-any`. In the end the losses of all updates must be those of the
undisturbed run, all checkpoints whole, and no unfinished file left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from credit_jax.checkpoint import CheckpointStore
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.training.records import RECORDS_NAME, read_records

# All have two devices; the mesh of the undisturbed run is the first one.
MESHES = {
    "domain 2": {"tensor": 1, "domain": 2},
    "tensor 2": {"tensor": 2, "domain": 1},
}
START_SECONDS, END_SECONDS = 300.0, 60.0
# By which the losses of another mesh may differ, relatively.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Kill:
    """One start of the run, and how it was killed.

    Attributes:
        mesh: key of MESHES.
        processes: of this start.
        killed: numbers of the processes that were.
        moment: what it did then: "starting", "training", "saving".
        step: newest record at that time.
        seconds: until the other processes had ended by themselves.
        codes: exit codes of all.
    """

    mesh: str
    processes: int
    killed: tuple[int, ...]
    moment: str
    step: int
    seconds: float
    codes: tuple[int, ...]


@dataclass
class Matrix:
    """Kills of a run and what came of it.

    Attributes:
        command: that trains, without options, such as `python -m credit_jax.train`.
        config: of a run on two devices.
        folder: of everything that is written.
        kills: made so far.
        problems: what is wrong, one line each.
    """

    command: Sequence[str]
    config: str
    folder: Path
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self, num_kills: int, seed: int, *, max_processes: int = 2) -> None:
        """Trains undisturbed, then with kills, and compares."""
        chosen = random.Random(seed)
        first = next(iter(MESHES))
        self._finish("straight", first, 1)
        meshes = {first}
        while len(self.kills) < num_kills:
            mesh = chosen.choice([*MESHES])
            processes = chosen.randint(1, max_processes)
            meshes.add(mesh)
            if not self._start_and_kill(mesh, processes, chosen):
                self.problems.append("the run ended before all kills; make it longer")
                break
        self._finish("killed", first, max_processes)
        self._compare(0.0 if meshes == {first} else TOLERANCE)

    def _start(self, name: str, mesh: str, count: int) -> list[subprocess.Popen[bytes]]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        degrees = (f"trainer.parallelism.{k}={n}" for k, n in MESHES[mesh].items())
        sets = [f"save_loc={self.folder / name}", *degrees]
        options = ["--config", self.config, "--resume", "if-any"]
        options += [word for text in sets for word in ("--set", text)]
        environ = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
        processes = []
        for number in range(count):
            by_hand = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
            by_hand += ["--process", str(number), "--connect-timeout", "30"]
            log = self.folder / f"{name}.{number}.log"
            with log.open("ab") as output:
                processes.append(
                    subprocess.Popen(
                        [*self.command, *options, *(by_hand if count > 1 else ())],
                        env=environ | {"JAX_PLATFORMS": "cpu"},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        return processes

    def _finish(self, name: str, mesh: str, count: int) -> None:
        processes = self._start(name, mesh, count)
        codes = [process.wait(START_SECONDS * 4) for process in processes]
        if any(codes):
            self.problems.append(f"{name}: the last start ended with codes {codes}")

    def _start_and_kill(self, mesh: str, count: int, chosen: random.Random) -> bool:
        """False if the run ended before."""
        before = self._newest_step()
        processes = self._start("killed", mesh, count)
        moment = chosen.choice(["starting", "training", "training", "saving", "saving"])
        wait = chosen.uniform(0, 6) if moment == "starting" else chosen.uniform(0, 0.3)
        ahead = chosen.randint(1, 8)
        deadline = time.monotonic() + START_SECONDS
        while not self._has_come(moment, before + ahead):
            if all(process.poll() is not None for process in processes):
                return False
            if time.monotonic() > deadline:
                self.problems.append(f"start {len(self.kills) + 1} does not train")
                break
            time.sleep(0.002)
        time.sleep(wait)
        numbers = [*range(count)]
        killed = numbers if chosen.random() < 0.5 else [chosen.choice(numbers)]
        step = self._newest_step()
        for number in killed:
            processes[number].send_signal(signal.SIGKILL)
        began = time.monotonic()
        codes = tuple(self._wait(process) for process in processes)
        seconds = time.monotonic() - began
        kill = Kill(mesh, count, tuple(killed), moment, step, seconds, codes)
        self.kills.append(kill)
        for number in set(numbers) - set(killed):
            # One that was not met yet says so after --connect-timeout.
            if codes[number] not in (0, RESUME, *([2] if moment == "starting" else [])):
                self.problems.append(f"{kill}: process {number} did not end with 75")
        return True

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.problems.append(f"a process hung {END_SECONDS:g} s after a kill")
            process.kill()
            return process.wait()

    def _has_come(self, moment: str, step: int) -> bool:
        if moment == "starting":
            return True
        if self._newest_step() < step:
            return False
        checkpoints = self.folder / "killed" / "checkpoints"
        return moment != "saving" or any(
            not path.name.isdigit() for path in checkpoints.glob("*") if path.is_dir()
        )

    def _newest_step(self) -> int:
        return max(_losses(self.folder / "killed"), default=0)

    def _compare(self, tolerance: float) -> None:
        runs = [self.folder / name for name in ("straight", "killed")]
        expected, found = (_losses(run) for run in runs)
        if expected.keys() != found.keys():
            lost = sorted(expected.keys() ^ found.keys())
            self.problems.append(f"updates that only one of the runs has: {lost[:9]}")
        for step in sorted(expected.keys() & found.keys()):
            one, other = expected[step], found[step]
            if abs(one - other) > tolerance * abs(one):
                self.problems.append(f"update {step}: loss {other!r}, not {one!r}")
        store = CheckpointStore(runs[1])
        for step in store.steps():
            self.problems += store.damage(step)
        store.close()
        left = [p for p in runs[1].rglob(".*") if p.is_file()]
        left += [*(runs[1] / "checkpoints").glob("*tmp*")]
        self.problems += [f"left behind: {path}" for path in left]


def _losses(run: Path) -> Mapping[int, float]:
    """The loss of every update that is recorded."""
    path = run / RECORDS_NAME
    if not path.exists():
        return {}
    return {r["step"]: r["loss"] for r in read_records(path) if "loss" in r}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the matrix and prints a table; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="of a run on two devices")
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True)
    command = [sys.executable, "-m", "credit_jax.train"]
    matrix = Matrix(command, args.config, args.folder.resolve())
    matrix.run(args.kills, args.seed, max_processes=args.processes)
    print(
        "| mesh | processes | killed | moment | step | others ended after s | codes |"
    )
    print("|---|---|---|---|---|---|---|")
    for kill in matrix.kills:
        row = asdict(kill) | {"seconds": f"{kill.seconds:.2f}"}
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    print(json.dumps({"kills": len(matrix.kills), "problems": matrix.problems}))
    return 1 if matrix.problems else 0


if __name__ == "__main__":
    sys.exit(main())
