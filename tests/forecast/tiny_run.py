"""A run of the tiny model with a checkpoint, and forecasts of it."""

import copy
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
import yaml
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.forecast import main
from credit_jax.config import build_config
from credit_jax.models.registry import build
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import read_log
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare
from tests.support import assert_close
from tests.training.tiny import tiny_config, write_yaml

# Start dates of the data set, whose times go to 2000-01-10.
BATCH = {
    "forecast_length": "18h",
    "first_init_date": "1999-12-30",
    "last_init_date": "2000-01-01",
    "init_interval": "12h",
}
FORECASTS: dict[str, Any] = {
    "postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}},
    "inference": {"batch_forecast": BATCH, "output": {"format": "zarr"}},
}
Run = tuple[dict[str, Any], xr.Dataset]


def write_config(world: Path, run: Path, folder: Path, **changes: Any) -> str:
    """Writes the YAML of a run, changed, to another folder."""
    folder.mkdir(exist_ok=True, parents=True)
    raw = tiny_config(world, run, **copy.deepcopy(FORECASTS | changes))
    return write_yaml(folder / "model.yml", raw)


def write_weights(
    model: Mapping[str, Any],
    run: Path,
    *,
    step: int = 1,
    scale: float = 1.0,
    average: float | None = None,
    coordinates: Any = None,
) -> tuple[dict[str, np.ndarray], Any]:
    """Writes a checkpoint of random weights times `scale`.

    Returns:
        The parameters, whose moving average is `average` times them (`scale` times by
        default), and the state of the model.
    """
    model_def = build(model)
    keys = jax.random.split(jax.random.key(0))
    params = model_def.init(keys[0])
    model_state = model_def.init_model_state(keys[1], params)
    params, model_state = jax.device_get((params, model_state))
    scaled, mean = (
        {path: factor * value for path, value in params.items()}
        for factor in (scale, scale if average is None else average)
    )
    store = CheckpointStore(run)
    items = {"weights": {"params": scaled, **model_state}, "ema": mean}
    store.save(step, items, Progress(epoch=0, coordinates=coordinates))
    store.close()
    return params, model_state


def make_run(world: Path, folder: Path, scale: float = 1.0, **changes: Any) -> str:
    """Writes the YAML and a checkpoint of random weights times `scale`."""
    config = write_config(world, folder / "run", folder, **changes)
    model = yaml.safe_load(Path(config).read_text())["model"]
    write_weights(model, folder / "run", step=3, scale=scale)
    return config


def forecast(config: str, out: Path, *arguments: str) -> int:
    """Runs the command; returns its exit code."""
    fixed = ["--config", config, "--out", os.fspath(out), "--cache", "none"]
    return main([*fixed, *arguments])


def read(out: Path) -> xr.Dataset:
    """Opens the store as users do."""
    with xr.open_dataset(out / "forecast.zarr") as store:
        return store.load()


def chunks(out: Path) -> dict[str, bytes]:
    """Returns the bytes of the store's files but its root, which has the command."""
    store = out / "forecast.zarr"
    paths = [path for path in store.rglob("*") if path.is_file()]
    names = {path.relative_to(store).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in names.items() if name != "zarr.json"}


def train_and_forecast(
    raw: dict[str, Any], folder: Path, devices: int, *options: str
) -> Run:
    """Trains as a config says; returns the last row of the log, and forecasts."""
    setup = prepare(
        plan_run(build_config(raw), num_devices=devices), jax.devices()[:devices]
    )
    run_training(setup, folder / "run", Display(Console(file=io.StringIO())))
    (log,) = read_log(folder / "run" / "training_log.csv")
    config = write_yaml(folder / "model.yml", raw)
    assert forecast(config, folder / "out", *options) == 0
    return log, read(folder / "out")


def assert_same_runs(one: Run, other: Run) -> None:
    """Asserts that the last row of the log and the forecasts of two runs agree."""
    (log, store), (other_log, other_store) = one, other
    for key in ("train_loss", "valid_loss"):
        assert_close(other_log[key], log[key], 1e-5, key)
    for name in store.data_vars:
        ours, theirs = store[name].values, other_store[name].values
        # Diagnostic variables have no values at the start.
        there = np.isfinite(ours)
        assert there.any()
        assert (np.isfinite(theirs) == there).all()
        assert_close(theirs[there], ours[there], 1e-4, f"forecast of {name}")
