"""Runs on two real processes, split along each axis, equal those on one bitwise."""

from __future__ import annotations

import csv
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.run import open_run
from credit_jax.cli.train import main
from credit_jax.evaluation.scores import read_scores
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.training.loop import TIME_COLUMNS
from tests.data.world import MODEL
from tests.support import make_mesh
from tests.support.processes import on_processes, outputs, start_processes
from tests.training.tiny import Tiny, TinyConfig, tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model")

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
