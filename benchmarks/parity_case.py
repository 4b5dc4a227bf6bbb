"""The job of `mesh_parity`: one small WXFormer, its weights and its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from credit_jax.models.architecture import Architecture
from credit_jax.models.registry import build

GEN2_CONFIG = Path(__file__).parents[1] / "tests" / "reference" / "gen2.yml"

# Rows of the padded grid: divisible by all strides and windows, on CREDIT's shards too.
_PADDED_ROWS = 64
# Padding at a pole copies rows of the grid: it cannot be higher than the grid.
_FEWEST_ROWS = 22
_PAD_LON = 16
_BATCHES_PER_EPOCH = 5


@dataclass(frozen=True)
class Case:
    """Same weights and same batches for every mesh.

    Attributes:
        params: parameters by path, whole.
        vectors: spectral norm vectors by path, whole.
        x: (step, batch, channel, time, lat, lon).
        y: (step, batch, channel, time, lat, lon).
        latitude: (lat,) degrees, for the weights of the loss.
    """

    params: Mapping[str, Any]
    vectors: Mapping[str, Any]
    x: np.ndarray
    y: np.ndarray
    latitude: np.ndarray


def case_config(num_rows: int, num_steps: int, batch: int) -> dict[str, Any]:
    """CREDIT's YAML of the job as a mapping; it trains in CREDIT and in credit_jax.

    Earth padding brings any number of rows up to 64, so that the windows fit; long
    attention spans 4, 2, 2 and 1 windows at the four stages, spectral norm is on.

    Args:
        num_rows: of the grid, below 64.
        num_steps: optimiser updates.
        batch: samples of a global batch.

    Raises:
        ValueError: the rows leave no room for padding.
    """
    if not _FEWEST_ROWS <= num_rows <= _PADDED_ROWS - 2:
        raise ValueError(
            f"--rows must be from {_FEWEST_ROWS} to {_PADDED_ROWS - 2}, "
            f"got {num_rows}: the grid is padded to {_PADDED_ROWS} rows"
        )
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    top = (_PADDED_ROWS - num_rows) // 2
    bottom = _PADDED_ROWS - num_rows - top
    raw["model"] |= {
        "image_height": num_rows,
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [top, bottom],
            "pad_lon": [_PAD_LON, _PAD_LON],
        },
    }
    per_epoch = min(num_steps, _BATCHES_PER_EPOCH)
    if num_steps % per_epoch:
        raise ValueError(
            f"--steps above {_BATCHES_PER_EPOCH} must be a multiple of it, "
            f"got {num_steps}"
        )
    raw["trainer"] |= {
        "train_batch_size": batch,
        "batches_per_epoch": per_epoch,
        "epochs": num_steps // per_epoch,
        "num_epoch": num_steps // per_epoch,
        "skip_validation": True,
        "training_metric": "train_loss",
        "use_ema": False,
    }
    return raw


def random_case(
    config: Mapping[str, Any], num_steps: int, latitude: np.ndarray
) -> Case:
    """Weights and batches of our own, where CREDIT does not run beside."""
    architecture = build(config["model"])
    weights_key, vectors_key = jax.random.split(jax.random.key(config["seed"]))
    rng = np.random.default_rng(config["seed"])
    batch = config["trainer"]["train_batch_size"]
    shape = (num_steps, batch, architecture.input_channels, 1)
    grid = (architecture.image_height, architecture.image_width)
    target = (*shape[:2], architecture.output_channels, 1)
    return Case(
        params=architecture.init(weights_key),
        vectors=architecture.init_vectors(vectors_key),
        x=rng.standard_normal((*shape, *grid)).astype(np.float32),
        y=rng.standard_normal((*target, *grid)).astype(np.float32),
        latitude=latitude,
    )


def credit_case(
    architecture: Architecture,
    state_dict: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    latitude: np.ndarray,
) -> Case:
    """The weights that CREDIT started with and the batches that it saw."""
    from credit_torch_bridge import from_state_dict

    params, vectors = from_state_dict(architecture, state_dict)
    return Case(params, vectors, x, y, latitude)
