"""Runs of several processes: flags, agreement, faults."""

from __future__ import annotations

import csv
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.run import open_run
from credit_jax.cli.commands import FAILED, USER_ERROR
from credit_jax.cli.train import main
from credit_jax.evaluation.scores import read_scores
from credit_jax.io.folder_lock import NAME, folder_lock
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.training.loop import TIME_COLUMNS, SaveSchedule
from credit_jax.training.signals import Agreement
from tests.data.world import MODEL
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, make_mesh
from tests.support.processes import PROGRAM, on_processes, outputs, start_processes
from tests.support.processes import ROOT as ROOT_of_faults
from tests.training.credit_trajectory import assert_follows
from tests.training.flags_process import Results, Task
from tests.training.tiny import Tiny, TinyConfig, tiny_config, write_yaml

MESHES: dict[str, dict[str, Any]] = {
    "domain": {"data": "none", "tensor": 1, "domain": 2},
    "tensor and fsdp": {"data": "fsdp2", "tensor": 2, "domain": 1},
}


def config(world: Path, folder: Path, parallelism: dict[str, Any]) -> str:
    num = 2 if parallelism["data"] == "none" else 4
    samples = 4 if parallelism["data"] == "none" else 2
    mapping = tiny_config(
        world,
        folder / "run",
        trainer__parallelism=parallelism,
        trainer__num_devices=num,
        trainer__train_batch_size=samples,
        trainer__batches_per_epoch=7,
        trainer__epochs=1,
        trainer__save_every_minutes=1e-9,
    )
    folder.mkdir()
    return write_yaml(folder / "config.yml", mapping)


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "run" / "training_log.csv").open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


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
    mesh = {"data": "fsdp2", "tensor": 2, "domain": 1}
    path = config(world, tmp_path_factory.mktemp("runs") / "late", mesh)
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


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_two_processes_train_as_one(world: Path, tmp_path: Path, name: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["--config", config(world, one, MESHES[name]), "--cache", "none"]) == 0
    texts = on_processes(
        2, "credit_jax.cli.train", "--config", config(world, two, MESHES[name])
    )
    own = {"domain": "1 device", "tensor and fsdp": "2 devices"}[name]
    for number, text in enumerate(texts):
        assert f"process {number} of 2 on " in text
        assert f", {own}, started by the command line, coordinator 127." in text
    assert "simulated CPU devices" in texts[0]
    assert "epoch" not in texts[1], "process 0 alone speaks of the run"
    assert "Scores: " in texts[0]
    scores = [
        read_scores(folder / "run" / "scores").drop_attrs() for folder in (one, two)
    ]
    xr.testing.assert_identical(*scores)
    (expected,), (found,) = rows(one), rows(two)
    for key in ("train_loss", "valid_loss", "valid_rmse"):
        assert found[key] == expected[key], f"{name}: {key}"
    np.testing.assert_array_equal(weights(two), weights(one), f"{name}: weights")
    # Both processes follow the clock of one, a few updates later.
    assert len(CheckpointStore(two / "run").steps()) > 1


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_one_two_and_four_processes_train_alike(world: Path, tmp_path: Path) -> None:
    """Each axis is within a process or spans several, depending on their number."""
    parallelism = {"data": "fsdp2", "tensor": 2, "domain": 2}
    folders = {count: tmp_path / str(count) for count in (1, 2, 4)}
    for count, folder in folders.items():
        path = config(world, folder, parallelism)
        options = ("--config", path, "--set", "trainer.num_devices=8")
        on_processes(count, "credit_jax.cli.train", *options)
    (expected,), whole = rows(folders[1]), weights(folders[1])
    for count in (2, 4):
        (found,) = rows(folders[count])
        same = expected.keys() - TIME_COLUMNS
        assert {"train_loss", "valid_loss", "valid_rmse"} <= {*same}
        assert {k: found[k] for k in same} == {k: expected[k] for k in same}, count
        np.testing.assert_array_equal(weights(folders[count]), whole, str(count))


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
@pytest.mark.parametrize("killed", [1, 0])
def test_a_killed_process_of_a_run(world: Path, tmp_path: Path, killed: int) -> None:
    """By SIGKILL in training, while the other process needs it for every update."""
    mapping = tiny_config(
        world,
        tmp_path / "run",
        trainer__parallelism={"data": "none", "tensor": 1, "domain": 2},
        trainer__num_devices=2,
        trainer__epochs=100_000,
        trainer__use_scheduler=False,
    )
    config = write_yaml(tmp_path / "config.yml", mapping)
    processes = start_processes(2, "credit_jax.cli.train", "--config", config)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run" / "checkpoints").glob("*/digests.json")):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    processes[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    other = processes[1 - killed]
    text = other.communicate(timeout=60)[0]
    processes[killed].communicate()
    print(f"ended after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 20
    assert other.returncode == RESUME, text[-3000:]
    assert f"error: process {killed} is gone (its connection was closed)" in text
    assert "Traceback" not in text


@pytest.mark.usefixtures("tiny_model")
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


# Models and training against CREDIT, with the compiler flags of `credit_jax.train`.
#
# The other tests run with XLA's optimizations disabled (`tests/conftest.py`).


# Ten times the measured differences.
FORWARD, GRADIENT = 6e-6, 8e-6
ROOT = Path(__file__).parents[2]
# Not by `python -m`, which would pickle classes of the module as those of `__main__`.
PROCESS = (
    "import sys; from tests.training.flags_process import main; main(*sys.argv[1:])"
)


@pytest.mark.slow
def test_wxformer_equals_credit_with_trainings_own_flags(
    credit: Any, credit_run: Any, tmp_path: Path
) -> None:
    """Forward, gradients and 20 training steps on dp 2 x tp 2 x domain 2."""
    folder, run = credit_run
    _compare(credit, GEN2_CONFIG, run, tmp_path, folder)


@pytest.mark.slow
def test_crossformer_equals_credit_with_trainings_own_flags(
    credit: Any, tmp_path: Path
) -> None:
    """The same with another run of CREDIT."""
    config = yaml.safe_load(GEN2_CONFIG.read_text())
    config["model"]["type"] = "crossformer"
    path = tmp_path / "model.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    credit.write_dataset(tmp_path)
    run = credit.credit_train(path, tmp_path)
    _compare(credit, path, run, tmp_path, tmp_path)


def _compare(credit: Any, path: Path, run: Any, folder: Path, data: Path) -> None:
    """Compares both passes and the steps of a config with CREDIT's run of it."""
    block = yaml.safe_load(path.read_text())["model"]
    kind, case = block["type"], credit.credit_case(block, seed=3)
    results = _run(Task(path, run, case), folder, data)
    assert "disable_loop_unrolling" in results.flags, "the flags of training"
    assert "optimization_level" not in results.flags, "not those of the tests"
    assert_close(results.y, case.y, FORWARD, f"{kind}: forward")
    assert_close(results.loss, case.loss, FORWARD, f"{kind}: loss")
    ours, theirs = (
        np.concatenate([gradients[key].ravel() for key in case.gradients])
        for gradients in (results.gradients, case.gradients)
    )
    assert_close(ours, theirs, GRADIENT, f"{kind}: gradient of all parameters")
    assert_follows(results.trajectory, run, path, kind)


def _run(task: Task, folder: Path, data: Path) -> Results:
    """Runs the task in a process without the tests' flags, in the folder `data`."""
    given, out = folder / "task.pickle", folder / "results.pickle"
    given.write_bytes(pickle.dumps(task))
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(given), str(out)],
        cwd=data,
        env=os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return pickle.loads(out.read_bytes())


NUM_STEPS = 60


class Store:
    """A stand-in for the coordinator's key-value store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.reads = 0

    def key_value_set(self, key: str, value: str) -> None:
        if key in self.values:
            raise RuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        self.reads += 1
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


def test_nothing_is_wanted() -> None:
    assert decisions({}, 0) == [[], [], []]


def test_a_process_alone_asks_nobody() -> None:
    agreement = Agreement(0, 1, lambda: pytest.fail("there is no store"))
    assert agreement.reached(1, None) is None
    assert agreement.reached(2, "save") == "save"


def test_an_error_of_the_store_is_one() -> None:
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


# From the second checkpoint on, no file can grow.
FULL_DISK = """
import resource
from credit_jax.checkpoint import CheckpointStore
save, steps = CheckpointStore.save, []
def save_on_full_disk(store, step, *rest):
    steps.append(step)
    if len(steps) == 2:
        store.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
    save(store, step, *rest)
CheckpointStore.save = save_on_full_disk
"""
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


def train(config: str, *flags: str, fault: str = "") -> tuple[int, str]:
    """Runs `train` in a subprocess; returns its exit code and output."""
    options = ["--config", config, "--cache", "none", "--devices", "1", *flags]
    done = subprocess.run(
        [sys.executable, "-c", fault + PROGRAM, "credit_jax.cli.train", *options],
        cwd=ROOT_of_faults,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_full_disk_and_a_second_run(world: Path, tmp_path: Path) -> None:
    """Each gives one error; afterwards the run resumes from the previous checkpoint."""
    folder = tmp_path / "run"
    mapping = tiny_config(world, folder, trainer__epochs=3)
    config = write_yaml(tmp_path / "config.yml", mapping)
    code, text = train(config, fault=FULL_DISK)
    print(text)
    assert code == FAILED
    assert text.count("error: ") == 1
    assert "could not be written: File too large" in text.replace("\n", " ")
    assert "Traceback" not in text
    store = CheckpointStore(folder)
    assert store.steps() == [6]
    assert store.damage(6) == []
    store.close()
    with folder_lock(folder):
        code, text = train(config, "--resume")
    assert code == USER_ERROR
    held = f"a run is going on in this folder (process {os.getpid()} on "
    assert held in text.replace("\n", " ")
    code, text = train(config, "--resume")
    assert code == 0, text
    assert "epoch 2, batch 1" in text
    store = CheckpointStore(folder)
    assert store.latest_step() == 18
    store.close()
    assert not (folder / NAME).exists()


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
    code, text = train(config, fault=NO_LOCKS)
    print(text)
    assert code == 0
    assert 0 < text.index("has no locks") < text.index("epoch 1/2")
    store = CheckpointStore(tmp_path / "run")
    assert len(store.steps()) == 2
    assert not store.damage(store.steps()[-1])
    store.close()
