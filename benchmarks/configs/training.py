"""Two training steps of a config of CREDIT, made small, on random data."""

from __future__ import annotations

import contextlib
import io
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from credit_jax.config import build_config
from credit_jax.extensions.certification.small_config import (
    fit_scalers,
    make_small,
    write_files,
)
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import LOG_NAME, read_log
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare

# Devices that the largest of these meshes needs: dp 2 x tp 2 x domain 2.
NUM_DEVICES = 8


@dataclass(frozen=True)
class Trained:
    """The result of two steps of a config.

    Attributes:
        mesh: data parallelism and the degrees.
        train_loss: mean of the two steps.
        valid_loss: validation loss of one batch; None without validation.
        seconds: seconds of all of it, compilation included.
    """

    mesh: str
    train_loss: float
    valid_loss: float | None
    seconds: float


def train_two_steps(mapping: Mapping[str, Any], folder: Path) -> Trained:
    """Makes a config small, writes its data, fits its scalers, and trains.

    Args:
        mapping: config for credit_jax.
        folder: empty; of all files.

    Raises:
        ValueError, OSError: the config does not train.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        config = build_config(make_small(mapping, folder))
        write_files(config)
        fit_scalers(config)
        section = config.trainer.parallelism
        twice = 1 if section.data == "none" else 2
        devices = jax.devices()[: twice * required_devices(section)]
        plan = plan_run(config, num_devices=len(devices))
        console = Console(file=io.StringIO())
        outcome = run_training(prepare(plan, devices), folder / "run", Display(console))
    row = read_log(folder / "run" / LOG_NAME)[-1]
    if int(outcome.state.micro_step) != 2 or not math.isfinite(row["train_loss"]):
        raise ValueError(f"2 steps with a finite loss expected, the log has {row}")
    mesh = f"{section.data} {twice}, tensor {section.tensor}, domain {section.domain}"
    valid = row.get("valid_loss")
    seconds = time.perf_counter() - start
    return Trained(mesh, float(row["train_loss"]), valid, seconds)
