"""Runs of several processes: agreement, faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.run import open_run
from credit_jax.cli.commands import USER_ERROR
from credit_jax.cli.train import main
from credit_jax.evaluation.scores import read_scores
from credit_jax.io.folder_lock import NAME, folder_lock
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.training.loggers import read_log
from credit_jax.training.loop import TIME_COLUMNS, SaveSchedule
from credit_jax.training.signals import Agreement
from tests.data.world import MODEL
from tests.support import make_mesh
from tests.support.processes import (
    PROGRAM,
    on_processes,
    outputs,
    run_python,
    start_processes,
)
from tests.training.tiny import Tiny, TinyConfig, tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model")
# Degrees of data, tensor and domain, devices, and numbers of processes.
MESHES = {
    "domain": (("none", 1, 2), 2, (2,)),
    "tensor and fsdp": (("fsdp2", 2, 1), 4, (2,)),
    "2x2x2": (("fsdp2", 2, 2), 8, (2, 4)),
}


def config(world: Path, folder: Path, mesh: str) -> str:
    degrees, num, _ = MESHES[mesh]
    mapping = tiny_config(
        world,
        folder / "run",
        trainer__parallelism=dict(
            zip(("data", "tensor", "domain"), degrees, strict=True)
        ),
        trainer__num_devices=num,
        trainer__train_batch_size=4 if degrees[0] == "none" else 2,
        trainer__batches_per_epoch=7,
        trainer__epochs=1,
        trainer__save_every_minutes=1e-9,
    )
    folder.mkdir()
    return write_yaml(folder / "config.yml", mapping)


def rows(folder: Path) -> list[dict[str, float]]:
    return read_log(folder / "run" / "training_log.csv")


def weights(folder: Path) -> np.ndarray:
    """Returns all weights of the last checkpoint."""
    model_def = ModelDef(TinyConfig.model_validate(MODEL), Tiny)
    model = build_parallel_model(model_def, make_mesh())
    params, _ = open_run(folder / "run", weights="last").restore(model)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


@pytest.fixture(scope="module")
def late(
    world: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes of a run, of which one is late."""
    folder = tmp_path_factory.mktemp("runs") / "late"
    path = config(world, folder, "tensor and fsdp")
    processes = start_processes(2, "tests.training.late_process", "--config", path)
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def late_meanwhile(request: pytest.FixtureRequest) -> None:
    """Starts them before the other tests, as they wait for two minutes."""
    items = request.session.items
    if any("late" in getattr(item, "fixturenames", ()) for item in items):
        request.getfixturevalue("late")


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_processes_train_as_one(world: Path, tmp_path: Path, name: str) -> None:
    """Each axis is within a process or spans several, depending on their number."""
    one, (_, num, counts) = tmp_path / "one", MESHES[name]
    assert main(["--config", config(world, one, name), "--cache", "none"]) == 0
    for count in counts:
        many = tmp_path / str(count)
        path = config(world, many, name)
        texts = on_processes(count, "credit_jax.cli.train", "--config", path)
        own = f"{num // count} device{'s' * (num > count)}"
        for number, text in enumerate(texts):
            assert f"process {number} of {count} on " in text
            assert f", {own}, started by the command line, coordinator 127." in text
        assert "simulated CPU devices" in texts[0]
        assert "epoch" not in texts[1], "process 0 alone speaks of the run"
        assert "Scores: " in texts[0]
        scores = (read_scores(f / "run" / "scores").drop_attrs() for f in (one, many))
        xr.testing.assert_identical(*scores)
        (expected,), (found,) = rows(one), rows(many)
        names = expected.keys() - TIME_COLUMNS
        assert {"train_loss", "valid_loss", "valid_rmse"} <= names
        assert {k: found[k] for k in names} == {k: expected[k] for k in names}
        np.testing.assert_array_equal(weights(many), weights(one), name)
        # All processes follow the clock of one, a few updates later.
        assert len(CheckpointStore(many / "run").steps()) > 1


@pytest.mark.slow
def test_a_process_may_be_late(late: list[subprocess.Popen[str]]) -> None:
    """By more than gloo waits, where it compiles and where it reads."""
    texts = outputs(late)
    found = [line for line in texts[1].splitlines() if line.startswith("late: ")]
    assert found == [
        "late: compiling jit_step",
        "late: reading",
        "late: compiling jit_evaluate",
    ]


NUM_STEPS = 60


class Store:
    """A stand-in for the coordinator's key-value store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        if key in self.values:
            raise RuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        if key not in self.values:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]


def decisions(wishes: dict[tuple[int, int], str], seed: int) -> list[list[tuple]]:
    """Returns decisions (step, what) of three processes, at most two steps apart.

    Args:
        wishes: (process, step) -> the request from that step until it is decided.
        seed: seed of the order in which the processes make steps.
    """
    store, rng = Store(), np.random.default_rng(seed)
    agreements = [Agreement(0, 3, lambda: store) for _ in range(3)]
    steps, wanted = [0, 0, 0], [None, None, None]
    found: list[list[tuple]] = [[], [], []]
    while min(steps) < NUM_STEPS:
        process = rng.integers(3)
        if steps[process] > min(steps) + 1 or steps[process] == NUM_STEPS:
            continue
        steps[process] += 1
        wanted[process] = wishes.get((process, steps[process]), wanted[process])
        what = agreements[process].reached(steps[process], wanted[process])
        if what is not None:
            found[process].append((steps[process], what))
            wanted[process] = None if what == wanted[process] else wanted[process]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_all_do_it_at_the_same_step(seed: int) -> None:
    wishes = {(1, 7): "save", (0, 8): "SIGTERM", (2, 9): "SIGTERM", (0, 40): "save"}
    one, two, three = decisions(wishes, seed)
    assert one == two == three
    assert {what for _, what in one} == {"save", "SIGTERM"}
    assert all(step <= 60 for step, _ in one)
    assert one[0][0] <= 7 + 2 + 4, "soon"


def test_agreements_of_none_one_and_none_left() -> None:
    assert decisions({}, 0) == [[], [], []]
    alone = Agreement(0, 1, lambda: pytest.fail("there is no store"))
    assert alone.reached(1, None) is None
    assert alone.reached(2, "save") == "save"

    class Broken(Store):
        def key_value_try_get(self, key: str) -> str:
            raise RuntimeError("UNAVAILABLE: the coordinator is gone")

    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        Agreement(0, 2, Broken).reached(1, None)


def test_saves_by_updates_and_by_the_clock() -> None:
    now = 0.0
    schedule = SaveSchedule(3, 15, clock=lambda: now)
    now = 3600.0
    assert not schedule.due_by_clock, "nothing was trained yet"
    schedule.updated()
    assert schedule.due_by_clock
    assert not schedule.due_by_steps
    schedule.updated()
    schedule.updated()
    assert schedule.due_by_steps
    assert schedule.minutes_ago("ago") == {}, "nothing was saved yet"
    with schedule.saving():
        now += 12
    assert schedule.minutes_ago("ago") == {"ago": 0}
    assert not schedule.due_by_steps
    assert not schedule.due_by_clock
    assert schedule.minutes == 0
    assert schedule.seconds() == 12
    assert schedule.seconds() == 0
    now += 15 * 60
    schedule.updated()
    assert schedule.due_by_clock
    other = SaveSchedule(None, 15, leads=False, clock=lambda: now)
    now += 3600
    other.updated()
    assert not other.due_by_clock
    assert not other.due_by_steps


# The system answers every lock of a file with "no locks available".
NO_LOCKS = """
import ctypes, errno, fcntl, platform, struct
flock, control = {"x86_64": (73, 72), "aarch64": (32, 25)}[platform.machine()]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: of a call's number and second argument
commands = (5, 6, 7, 36, 37, 38)  # F_GETLK to F_SETLKW, and F_OFD_GETLK to ...
more = len(commands)
program = [(LOAD, 0, 0, 0), (EQUAL, more + 3, 0, flock), (EQUAL, 0, more + 1, control)]
program += [(LOAD, 0, 0, 24)]
program += [(EQUAL, more - n, 0, command) for n, command in enumerate(commands)]
program += [(RETURN, 0, 0, 0x7FFF0000), (RETURN, 0, 0, 0x00050000 | errno.ENOLCK)]
code = b"".join(struct.pack("HBBI", *line) for line in program)
text = ctypes.create_string_buffer(code)
filters = struct.pack("HP", len(program), ctypes.addressof(text))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP
"""


def test_a_second_run_in_a_folder(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    path = write_yaml(tmp_path / "config.yml", tiny_config(world, tmp_path / "run"))
    with folder_lock(tmp_path / "run"):
        assert main(["--config", path, "--cache", "none"]) == USER_ERROR
    text = " ".join(capsys.readouterr().err.split())
    assert f"a run is going on in this folder (process {os.getpid()} on " in text


HOLD = """
import os, signal, sys
from pathlib import Path
from credit_jax.io.folder_lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_holds_no_folder(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / NAME).exists()
    with folder_lock(tmp_path):
        assert f"process {os.getpid()} on " in (tmp_path / NAME).read_text()
        with (
            pytest.raises(ValueError, match="a run is going on"),
            folder_lock(tmp_path),
        ):
            pass
    assert not (tmp_path / NAME).exists()


def test_a_lock_that_cannot_be_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(RuntimeError, match="the reason"), folder_lock(tmp_path):
        raise RuntimeError("the reason")
    with folder_lock(tmp_path):
        pass


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with folder_lock(tmp_path) as first, folder_lock(tmp_path) as second:
        assert not first
        assert not second


@pytest.mark.slow
def test_a_run_without_locks_saves_and_warns(world: Path, tmp_path: Path) -> None:
    mapping = tiny_config(world, tmp_path / "run", trainer__epochs=2)
    config = write_yaml(tmp_path / "config.yml", mapping)
    options = ["--config", config, "--cache", "none", "--devices", "1"]
    code, text = run_python(NO_LOCKS + PROGRAM, "credit_jax.cli.train", *options)
    assert code == 0
    assert 0 < text.index("has no locks") < text.index("epoch 1/2")
    store = CheckpointStore(tmp_path / "run")
    assert len(store.steps()) == 2
    assert not store.damage(store.steps()[-1])
    store.close()
