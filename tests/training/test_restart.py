"""Runs that go on with other devices than they began with: the same batches."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from credit_jax import ParallelDims
from credit_jax.checkpoint import CheckpointStore
from credit_jax.cli.train import main
from credit_jax.config import ConfigError, load_config
from credit_jax.models import registry
from credit_jax.plan.restart import mesh_of_restart
from credit_jax.training.loop import TIME_COLUMNS
from tests.support import assert_close
from tests.training.noisy import Noisy, NoisyConfig
from tests.training.tiny import tiny_config, write_yaml

SLOW = pytest.mark.slow
NUM_SAMPLES = 4  # of a batch: 2 data-parallel ranks of 2 samples


@pytest.fixture(scope="module")
def straight(
    world: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, float]]]:
    """A run of two epochs on dp 2 x tp 2 x domain 2, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        entry = registry.ModelEntry(NoisyConfig, Noisy)
        patch.setitem(registry.MODELS, "noisy", entry)
        code = main(["--config", config(world, folder), "--devices", "8"])
    assert code == 0
    return folder, rows(folder)


def config(world: Path, folder: Path) -> str:
    mapping = tiny_config(
        world,
        folder / "run",
        model__type="noisy",
        trainer__parallelism={"data": "fsdp2", "tensor": 2, "domain": 2},
        trainer__train_batch_size=2,
        trainer__valid_batch_size=2,
        trainer__batches_per_epoch=6,
        trainer__epochs=2,
        trainer__save_every_steps=1,
        trainer__grad_accum_every=2,
    )
    return write_yaml(folder / "config.yml", mapping)


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "run" / "training_log.csv").open() as file:
        return [{k: float(v) for k, v in r.items() if v} for r in csv.DictReader(file)]


# Devices of the second and the third start.
RESTARTS = [
    (6, 8),
    *(pytest.param(each, marks=SLOW) for each in [(4, 3), (1, 5), (7, 2)]),
]


@pytest.mark.parametrize("starts", RESTARTS)
def test_losses_stay(
    starts: Any,
    straight: Any,
    world: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a loss within an epoch, and another one, as if nothing had happened."""
    entry = registry.ModelEntry(NoisyConfig, Noisy)
    monkeypatch.setitem(registry.MODELS, "noisy", entry)
    folder, expected = straight
    shutil.copytree(folder / "run", tmp_path / "run")
    path = config(world, tmp_path)
    for devices in starts:
        store = CheckpointStore(tmp_path / "run")
        newest = store.latest_step()
        assert newest is not None
        shutil.rmtree(store.path(newest))
        store.close()
        assert main(["--config", path, "--devices", str(devices), "--resume"]) == 0
        text = " ".join("".join(capsys.readouterr()).split())
        assert f"batches of {NUM_SAMPLES} an epoch" in text
        assert ("meant for dp 2 x tensor 2 x domain 2" in text) == (devices != 8)
    for row, like in zip(rows(tmp_path), expected, strict=True):
        for name in row.keys() - TIME_COLUMNS:
            # Of a batch in parts these are means of the parts.
            if not name.startswith(("train_rmse", "train_r2score")):
                assert_close(row[name], like[name], 1e-6, name)


class Device:
    """What `mesh_of_restart` looks at."""

    def __init__(self, process_index: int) -> None:
        self.process_index = process_index


# Degrees of the section, samples of a rank, data-parallel ranks at the start; processes
# and their devices; degrees and devices that the run goes on with.
MESHES = {
    "a node of four": (("fsdp2", 2, 2), 1, 4, (3, 4), (2, 2, 3), 12),
    "devices idle": (("fsdp2", 1, 1), 1, 8, (1, 7), (4, 1, 1), 4),
    "another divisor": (("ddp", 1, 1), 3, 4, (3, 2), (6, 1, 1), 6),
    "too few for tensor and domain": (("fsdp2", 2, 2), 2, 1, (1, 2), (1, 1, 2), 2),
    "more": (("fsdp2", 2, 1), 4, 2, (4, 2), (4, 2, 1), 8),
    "none": (("none", 1, 2), 1, 1, (1, 3), (1, 1, 2), 2),
}


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("name", MESHES)
def test_mesh(name: str, world: Path, tmp_path: Path) -> None:
    (data, tensor, domain), size, ranks, (processes, each), degrees, num = MESHES[name]
    mapping = tiny_config(
        world,
        tmp_path,
        trainer__parallelism={"data": data, "tensor": tensor, "domain": domain},
        trainer__train_batch_size=size,
        trainer__valid_batch_size=size,
    )
    config = load_config(write_yaml(tmp_path / "c.yml", mapping))
    devices = [Device(n) for n in range(processes) for _ in range(each)]
    chosen, used, notes = mesh_of_restart(config, devices, ranks)
    dims = ParallelDims.from_config(chosen, len(used))
    assert (dims.batch_size, dims.tp, dims.domain) == degrees
    per_process = [sum(d.process_index == n for d in used) for n in range(processes)]
    assert per_process == [num // processes] * processes
    assert bool(notes) == (degrees != (ranks, tensor, domain))


@pytest.mark.usefixtures("tiny_model")
def test_no_mesh(world: Path, tmp_path: Path) -> None:
    """Members of an ensemble are on as many ranks as at the start."""
    mapping = tiny_config(
        world, tmp_path, trainer__ensemble_size=2, loss={"training_loss": "KCRPS"}
    )
    config = load_config(write_yaml(tmp_path / "c.yml", mapping))
    with pytest.raises(ConfigError, match=r"no mesh of 1 device .* batches of 4 and 8"):
        mesh_of_restart(config, [Device(0)], 2)
