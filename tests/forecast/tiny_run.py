"""A run of the tiny model with a checkpoint, and forecasts of it."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.forecast import main
from credit_jax.models.registry import build
from tests.support import assert_close
from tests.training.tiny import tiny_config, write_yaml

# Start dates of the data set, whose times go to 2000-01-10.
BATCH = {
    "forecast_length": "18h",
    "first_init_date": "1999-12-30",
    "last_init_date": "2000-01-01",
    "init_interval": "12h",
}


def make_run(world: Path, folder: Path, scale: float = 1.0, **changes: Any) -> str:
    """Writes the YAML and a checkpoint of random weights times `scale`."""
    settings: dict[str, Any] = {
        "postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}},
        "inference": {"batch_forecast": BATCH, "output": {"format": "zarr"}},
    }
    raw = tiny_config(world, folder / "run", **settings | changes)
    folder.mkdir(exist_ok=True)
    config = write_yaml(folder / "model.yml", raw)
    model_def = build(raw["model"])
    keys = jax.random.split(jax.random.key(0))
    params = model_def.init(keys[0])
    model_state = model_def.init_model_state(keys[1], params)
    params, model_state = jax.device_get((params, model_state))
    params = {path: scale * value for path, value in params.items()}
    store = CheckpointStore(folder / "run")
    items = {"weights": {"params": params, **model_state}, "ema": params}
    store.save(3, items, Progress(epoch=0))
    store.close()
    return config


def forecast(config: str, out: Path, *arguments: str) -> int:
    """Runs the command; returns its exit code."""
    fixed = ["--config", config, "--out", os.fspath(out), "--cache", "none"]
    return main([*fixed, *arguments])


def read(out: Path) -> xr.Dataset:
    """Opens the store as users do."""
    with xr.open_dataset(out / "forecast.zarr") as store:
        return store.load()


def assert_same_runs(
    one: tuple[dict[str, Any], xr.Dataset], other: tuple[dict[str, Any], xr.Dataset]
) -> None:
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
