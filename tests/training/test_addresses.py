"""Runs whose folder is an address: other machines go on with them, and use them."""

import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.console import main
from credit_jax.io import mirror
from tests.data.world import raw_config
from tests.io.s3_server import served
from tests.training.tiny import tiny_config, write_yaml

# On 6 x 10 points.
SMALL = {
    "dim": [4, 8, 16, 32],
    "depth": [1, 1, 1, 1],
    "dim_head": 4,
    "local_window_size": [1, 1, 1, 1],
    "global_window_size": [1, 1, 1, 1],
    "cross_embed_kernel_sizes": [[2], [2], [2], [2]],
    "cross_embed_strides": [2, 2, 2, 2],
    "padding_conf": {
        "activate": True,
        "mode": "earth",
        "pad_lat": [5, 5],
        "pad_lon": [3, 3],
    },
}
RUN = "s3://bucket/runs/a"


def train(path, *options, save_loc=RUN):
    return main(["train", "--config", path, "--save-loc", str(save_loc), *options])


def checkpoints(objects):
    return {name.split("/")[3] for name in [*objects] if "/checkpoints/" in name}


def losses(objects):
    lines = objects["runs/a/training_log.csv"][0].decode().splitlines()
    column = lines[0].split(",").index("train_loss")
    return [float(line.split(",")[column]) for line in lines[1:]]


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_model")
def test_a_run_without_a_shared_disk(world, tmp_path, monkeypatch):
    """Trained, resumed elsewhere on another mesh, forecast, scored, packaged."""
    with served("bucket") as (server, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        objects = server.buckets["bucket"]

        def move(name):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
            monkeypatch.setattr(socket, "gethostname", lambda: name)

        move("one")
        mapping = tiny_config(
            world,
            tmp_path / "x",
            trainer__epochs=1,
            trainer__train_batch_size=2,
        )
        path = write_yaml(tmp_path / "config.yml", mapping)
        assert train(path, "--devices", "2") == OK
        assert "runs/a/model.yml" in objects
        assert not any(name.endswith(mirror.LOCK) for name in objects)
        assert train(path, "--devices", "2") == USER_ERROR  # there is a run
        move("two")
        server.faults["rate"] = 0.02
        more = ["--set", "trainer.epochs=2", "--set", "trainer.parallelism.tensor=2"]
        more += ["--resume", "--devices", "2"]
        assert main(["train", "--config", f"{RUN}/model.yml", *more]) == OK
        straight = tmp_path / "straight"
        two = ["--set", "trainer.epochs=2"]
        assert train(path, "--devices", "2", *two, save_loc=straight) == OK
        expected = np.genfromtxt(
            straight / "training_log.csv", delimiter=",", names=True
        )["train_loss"]
        np.testing.assert_allclose(losses(objects), expected, rtol=1e-6)
        move("three")
        forecast = ["--init-time", "2000-01-07", "--length", "6h", "--format", "zarr"]
        named = ["--set", "postblocks.per_step.named.type=reconstruct"]
        config = ["--config", f"{RUN}/model.yml", *named]
        assert main(["forecast", *config, *forecast, "--out", "s3://bucket/f"]) == OK
        move("four")
        score = ["score", "--forecast", "s3://bucket/f", "--out", "s3://bucket/s"]
        assert main(score) == OK
        assert "s/scores.nc" in objects
        package = ["package", "--checkpoint", RUN, *named, "--out", "s3://bucket/p"]
        assert main(package) == OK
        move("five")
        again = ["forecast", "--package", "s3://bucket/p", *forecast]
        for kind in ("prognostic", "dynamic_forcing"):
            key = f"data.source.ERA5.variables.{kind}.path"
            again += ["--set", f"{key}={world}/w_%Y.nc"]
        assert main([*again, "--out", str(tmp_path / "f")]) == OK
        chunks = {
            name: content
            for name, (content, *_) in objects.items()
            if name.startswith("f/forecast.zarr/") and "zarr.json" not in name
        }
        assert len(chunks) > 3
        for name, content in chunks.items():
            assert (tmp_path / name).read_bytes() == content, name


@pytest.mark.slow
def test_kills(world, tmp_path):
    """Each start is on another machine, without the folder of the killed one."""
    changes = {
        "trainer__epochs": 10,
        "trainer__batches_per_epoch": 30,
        "trainer__save_every_steps": 7,
    }
    mapping = raw_config(world, save_loc="unused", **changes)
    mapping["model"] |= SMALL
    path = write_yaml(tmp_path / "config.yml", mapping)
    command = [sys.executable, "-m", "credit_jax.train", "--config", path]
    command += ["--devices", "1", "--resume", "if-any", "--save-loc"]
    chance = random.Random(0)
    with served("bucket") as (server, environment):
        server.faults["rate"] = 0.02
        objects, log = server.buckets["bucket"], tmp_path / "log.txt"
        for number in range(20):
            home = {"XDG_CACHE_HOME": str(tmp_path / str(number))}
            cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [*command, RUN],
                    env={**os.environ, **environment, **home, **cache},
                    stdout=file,
                    stderr=file,
                )
            before = checkpoints(objects)
            while process.poll() is None:
                if number < 4 and checkpoints(objects) != before:
                    time.sleep(chance.uniform(0, 4))
                    process.kill()
                    process.wait()
                time.sleep(0.1)
            if process.returncode != -signal.SIGKILL:
                break
        text = log.read_text()
        assert process.returncode == 0, text
        assert number >= 2, text  # kills
        straight = tmp_path / "straight"
        subprocess.run([*command, str(straight)], check=True, capture_output=True)
        rows = (straight / "training_log.csv").read_text().splitlines()
        column = rows[0].split(",").index("train_loss")
        expected = [float(row.split(",")[column]) for row in rows[1:]]
        np.testing.assert_allclose(losses(objects), expected, rtol=1e-6)
