"""A diffusion model in training, validation and forecasts, on one and two devices."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

from credit_jax.cli.commands import OK
from credit_jax.config import build_config
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import read_log
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare
from tests.data.world import MODEL
from tests.forecast.tiny_run import BATCH, assert_same_runs, forecast, read
from tests.training.tiny import tiny_config, write_yaml

pytestmark = pytest.mark.slow

DIFFUSION = {
    **MODEL,
    "type": "unet-diffusion",
    "dim": [4],
    "dim_mults": [1],
    "attn_dim_head": 2,
    "attn_heads": 2,
    "diffusion": {
        "image_size": [MODEL["image_height"], MODEL["image_width"]],
        "timesteps": 30,
        "sampling_timesteps": 3,
        "objective": "pred_x0",
        "clip_denoised": False,
    },
}


@cache
def _run(world: Path, folder: Path, domain: int) -> tuple[dict[str, Any], Any]:
    """Trains one epoch; returns the last row of its log, and forecasts."""
    own = folder / str(domain)
    own.mkdir()
    raw = tiny_config(
        world,
        own / "run",
        model=DIFFUSION,
        postblocks={"per_step": {"reconstruct": {"type": "reconstruct"}}},
        inference={"batch_forecast": BATCH, "output": {"format": "zarr"}},
        trainer__parallelism={"data": "none", "tensor": 1, "domain": domain},
        trainer__epochs=1,
        trainer__batches_per_epoch=2,
        trainer__valid_batches_per_epoch=1,
    )
    setup = prepare(
        plan_run(build_config(raw), num_devices=domain), jax.devices()[:domain]
    )
    run_training(setup, own / "run", Display(Console(file=io.StringIO())))
    (log,) = read_log(own / "run" / "training_log.csv")
    config = write_yaml(own / "model.yml", raw)
    arguments = ["--parallelism", f"domain={domain}", "--members", "2"]
    assert forecast(config, own / "out", *arguments) == OK
    return log, read(own / "out")


def test_a_run_and_its_forecasts(world: Path, tmp_path: Path) -> None:
    """Noise steps, noise and samples are the same on two shards."""
    assert_same_runs(*(_run(world, tmp_path, n) for n in (1, 2)))
