"""Runs of the commands: ensembles, learned variances, precision, forecast lengths."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.checkpoint import LOSS, CheckpointStore
from credit_jax.cli.check import main as check
from credit_jax.cli.train import main
from credit_jax.config import load_config
from credit_jax.models import registry
from credit_jax.plan import plan_run
from credit_jax.training.loop import TIME_COLUMNS
from credit_jax.training.setup import prepare
from tests.reference.scalers import SCALED, write_scalers
from tests.support import assert_close
from tests.training.noisy import Noisy, NoisyConfig
from tests.training.tiny import tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model", "noisy_model")

Run = Callable[..., tuple[int, str]]
DP2 = {"data": "ddp", "tensor": 1, "domain": 1}
DP2_TP2_DOMAIN2 = {"data": "fsdp2", "tensor": 2, "domain": 2}
EIGHT = {"devices": 8, "trainer__parallelism": DP2_TP2_DOMAIN2}
EIGHT |= {"trainer__train_batch_size": 2, "trainer__valid_batch_size": 1}
ENSEMBLE = {
    "model__type": "noisy",
    "trainer__ensemble_size": 2,
    "trainer__train_batch_size": 2,
    "trainer__valid_batch_size": 1,
    "loss": {"training_loss": "KCRPS"},
    "trainer__skip_validation": False,
}


@pytest.fixture
def noisy_model(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.ModelEntry(NoisyConfig, Noisy)
    monkeypatch.setitem(registry.MODELS, "noisy", entry)


@pytest.fixture
def run(
    world: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`run(*flags, **changes)` -> exit code and output of both commands.

    With `report=True` it makes forecasts of held-out days, their scores and maps.
    """

    def nothing(_: str) -> dict[str, Any]:
        """No extension: none makes a report."""
        return {}

    def run_it(
        *flags: str, devices: int = 1, report: bool = False, **changes: Any
    ) -> tuple[int, str]:
        few = {"trainer__batches_per_epoch": 3, "trainer__valid_batches_per_epoch": 2}
        once = {"trainer__epochs": 1, "trainer__num_devices": devices}
        mapping = tiny_config(world, tmp_path / "run", **few | once | changes)
        path = write_yaml(tmp_path / "config.yml", mapping)
        code = check(["--config", path])
        text = "".join(capsys.readouterr())
        if code == 0:
            with monkeypatch.context() as patch:
                if not report:
                    patch.setattr("credit_jax.training.run.extensions", nothing)
                code = main(["--config", path, "--cache", "none", *flags])
            text += "".join(capsys.readouterr())
        return code, text

    return run_it


def rows(tmp_path: Path) -> list[dict[str, float]]:
    with (tmp_path / "run" / "training_log.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)
        ]


@pytest.mark.slow
def test_an_ensemble_on_two_ranks(run: Run, tmp_path: Path) -> None:
    code, text = run(devices=2, report=True, trainer__parallelism=DP2, **ENSEMBLE)
    assert code == 0, text
    assert "Scores: " in text
    (row,) = rows(tmp_path)
    assert row["train_std"] > 0.1
    assert {"train_loss", "valid_loss", "valid_rmse"} <= set(row)
    assert "3 batches of 2 an epoch" in text, "both ranks have the same samples"
    code, text = run("--resume", devices=2, trainer__parallelism=DP2, **ENSEMBLE)
    assert code == 0, text


def test_ranks_get_the_same_samples(world: Path, tmp_path: Path) -> None:
    """In CRPS training; in validation each rank has different samples."""
    changes = {"trainer__parallelism": DP2, **ENSEMBLE}
    config = load_config(
        write_yaml(tmp_path / "c.yml", tiny_config(world, tmp_path, **changes))
    )
    setup = prepare(plan_run(config, num_devices=2), jax.devices()[:2])
    assert setup.valid_loader is not None
    train, valid = (
        loader.epoch(0) for loader in (setup.train_loader, setup.valid_loader)
    )
    batch = next(train)
    placed = setup.place_train([batch])["x_raw"]
    first, second = (np.asarray(shard.data) for shard in placed.addressable_shards)
    assert np.array_equal(first, second)
    assert np.array_equal(first[0], batch.x)
    placed = setup.place_valid(next(valid))["x_raw"]
    first, second = (np.asarray(shard.data) for shard in placed.addressable_shards)
    assert not np.array_equal(first, second)
    alone = load_config(tmp_path / "c.yml", ["trainer.parallelism.data=none"])
    one = prepare(plan_run(alone, num_devices=1), jax.devices()[:1])
    assert np.array_equal(batch.x, next(one.train_loader.epoch(0)).x)


RING = {**ENSEMBLE, "trainer__parallelism": DP2}


@pytest.mark.slow
def test_a_member_on_each_rank(run: Run, tmp_path: Path) -> None:
    loss = {"training_loss": "ring-crps"}
    code, text = run(devices=2, **RING | {"loss": loss})
    assert code == 0, text
    assert rows(tmp_path)[0]["valid_loss"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__ensemble_size": 1}, "KCRPS scores an ensemble: set trainer.ens"),
        (
            {"loss": {"training_loss": "ring-crps"}, "trainer__ensemble_size": 4},
            "at least 2: 4 members do not fit 2 ranks",
        ),
        (
            {
                "loss": {"training_loss": "ring-crps"},
                "trainer__parallelism": {"data": "none", "tensor": 1, "domain": 2},
            },
            "at least 2: 2 members do not fit 1 ranks",
        ),
    ],
)
def test_wrong_ensembles(run: Run, changes: dict[str, Any], message: str) -> None:
    code, text = run(devices=2, **RING | changes)
    assert code != 0
    assert message in " ".join(text.split()), text


def named_blocks(scaler: Path) -> dict[str, Any]:
    """Returns blocks that scale, with fields in physical units for the loss."""
    args = {"scaler_path": str(scaler), "variables": [*SCALED.values()]}
    kind = "bridgescaler_transform"
    inverse = {"type": kind, "args": {**args, "method": "inverse_transform"}}
    key = "y_target_processed"
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": key}}
    return {
        "preblocks": {
            "per_step": {
                "scaler": {"type": kind, "args": {**args, "method": "transform"}},
                "concat": {"type": "concat"},
            }
        },
        "postblocks": {
            "per_step": {
                "named": {"type": "reconstruct", "args": {"detach": False}},
                "scaler": inverse,
                "twin": twin,
                "scaler_twin": {**inverse, "args": {**inverse["args"], "key": key}},
            }
        },
    }


@pytest.fixture
def scaler(torch: Any, world: Path, tmp_path: Path) -> Path:
    (tmp_path / "d.nc").symlink_to(world / "w_2000.nc")
    write_scalers(tmp_path, "d.nc", levels=[0, 2])
    return tmp_path / "scaler.json"


@pytest.mark.slow
@pytest.mark.usefixtures("credit")
def test_learned_variances_are_saved_and_go_on(
    run: Run, scaler: Path, tmp_path: Path
) -> None:
    """Two epochs in one run equal two runs of one epoch on different meshes."""
    args = {"var_weighting": "learnable", "scaler_path": str(scaler)}
    changes = {
        **named_blocks(scaler),
        "loss": {"type": "base", "args": args},
        "trainer__learning_rate": 0.05,
        "trainer__scheduler": {"scheduler_type": "lambda"},
        "trainer__training_metric": "valid_loss_var/ERA5/prognostic/3d/T",
    }
    code, text = run(**changes, trainer__epochs=2, report=True)
    assert code == 0, text
    assert "Scores: " in text
    expected, straight = rows(tmp_path), learned(tmp_path)
    code, text = run("--fresh", **changes)
    assert code == 0, text
    first = learned(tmp_path)
    code, text = run("--resume", **changes, **EIGHT, trainer__epochs=2)
    assert code == 0, text
    assert "goes on" in text or "Going on" in text
    assert_close(learned(tmp_path), straight, 1e-6, "log-variances")
    assert np.abs(first - straight).max() > 1e-3, "they are trained"
    for found, row in zip(rows(tmp_path), expected, strict=True):
        assert {f"train_loss_var/{key}" for key in SCALED.values()} <= set(row)
        assert {f"valid_loss_var/{key}" for key in SCALED.values()} <= set(row)
        for name in set(row) - TIME_COLUMNS:
            assert_close(found[name], row[name], 1e-5, name)


def learned(folder: Path) -> np.ndarray:
    """Returns the log-variances of the newest checkpoint."""
    store = CheckpointStore(folder / "run")
    step = store.latest_step()
    assert step is not None
    params = np.zeros(len(SCALED), np.float32)
    moments = {"count": np.int32(0), "mu": {"log_variance": params}}
    moments["nu"] = moments["mu"]
    like = {"params": {"log_variance": params}, "opt_state": {"adam": moments}}
    found = store.restore(step, {LOSS: like})[LOSS]["params"]["log_variance"]
    store.close()
    return np.asarray(found)


@pytest.mark.slow
@pytest.mark.usefixtures("credit")
def test_validation_has_its_own_lengths(run: Run, scaler: Path, tmp_path: Path) -> None:
    """Training has one forecast step, validation three."""
    longer = {"validation_data__forecast_len": 3}
    code, text = run(**named_blocks(scaler), **longer, report=True)
    assert code == 0, text
    assert "Scores: " in text
    (row,) = rows(tmp_path)
    assert (row["train_forecast_len"], row["valid_forecast_len"]) == (1, 3)
    assert (row["train_history_len"], row["valid_history_len"]) == (1, 1)


AMP = [
    ({"trainer__amp": True}, "float16", "float32"),
    ({"trainer__amp": True, **EIGHT}, "bfloat16", "bfloat16"),
    ({"trainer__amp": False}, "float32", "float32"),
    (
        {"trainer__amp": True, "trainer__fsdp2_mp_policy": {"param_dtype": "float16"}},
        "float16",
        "float16",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "training", "validation"), AMP)
def test_values_of_amp(
    run: Run, world: Path, tmp_path: Path, changes: Any, training: str, validation: str
) -> None:
    """CREDIT validates without autocast, but fsdp2 keeps its precision."""
    differ = training != validation
    code, text = run(**changes, report=differ)
    assert code == 0, text
    assert ("Scores: " in text) == differ
    assert re.search(f"cpu devices?, {training}\n", text)
    assert np.isfinite(rows(tmp_path)[0]["valid_loss"])
    config = load_config(tmp_path / "config.yml")
    devices = config.trainer.num_devices
    setup = prepare(plan_run(config, num_devices=devices), jax.devices()[:devices])
    precision = setup.valid_model.parallel_config.precision
    assert precision.compute.name == validation
