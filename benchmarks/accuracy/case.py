"""The training jobs of the accuracy benchmark: a small model, weights, batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.small_models import SECTIONS, SEVERAL, SMALL_ROWS
from credit_jax.models.conversion import from_state_dict
from credit_jax.models.model_def import ModelDef

GEN2_CONFIG = Path(__file__).parents[2] / "tests" / "reference" / "gen2.yml"

# Rows of the padded grid: divisible by all strides and windows, on CREDIT's shards too.
_PADDED_ROWS = 64
# Padding at a pole copies rows of the grid, so that it cannot exceed the grid.
_FEWEST_ROWS = 22
_PAD_LON = 16
_BATCHES_PER_EPOCH = 5

# Blocks of each stage; that of GEN2_CONFIG, for tests, has them in the first alone.
DEPTH = (1, 1, 1, 1)
# Padding modes of the released weights of each model; the other keys are GEN2_CONFIG's.
_PADDED: Mapping[str, str] = {
    "wxformer": "earth",
    "crossformer": "mirror",
    "camulator": "earth",
}
# Rows of each model's grid; 45 rows are uneven over domain 2.
ROWS: Mapping[str, int] = {
    "wxformer": 45,
    "crossformer": 32,
    "camulator": 45,
    **{
        name: section.get("image_height", SMALL_ROWS)
        for name, section in SECTIONS.items()
    },
    **{
        name: section.get("param_interior", section)["image_height"]
        for name, section in SEVERAL.items()
    },
}


@dataclass(frozen=True)
class Case:
    """The weights and batches that every mesh gets.

    Attributes:
        params: parameters by path, whole.
        model_state: its collections (`nn.parameters`), whole.
        x: (step, batch, channel, time, lat, lon).
        y: (step, batch, channel, time, lat, lon).
        latitude: (lat,) degrees, for the weights of the loss.
        trained: parameters and model state to roll out from; None for no rollout.
        further: inputs of the model besides x by name, (step, batch, ...) each.
    """

    params: Mapping[str, Any]
    model_state: Mapping[str, Any]
    x: np.ndarray
    y: np.ndarray
    latitude: np.ndarray
    trained: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    further: Mapping[str, np.ndarray] = field(default_factory=dict)

    def inputs(self, step: int) -> dict[str, np.ndarray]:
        """All inputs of the model in a step, by name."""
        further = {name: array[step] for name, array in self.further.items()}
        return {"x": self.x[step], **further}


def case_config(
    num_rows: int,
    num_steps: int,
    batch: int,
    *,
    model: str = "wxformer",
    batches_per_epoch: int = _BATCHES_PER_EPOCH,
) -> dict[str, Any]:
    """CREDIT's YAML of the job as a mapping, for CREDIT and credit_jax.

    Padding brings any number of rows of a released model up to 64, so that the windows
    fit; long attention spans 4, 2, 2 and 1 windows at the four stages, spectral norm
    is on. Grids of the other models are those of `ROWS`.

    Args:
        num_rows: number of rows of the grid, below 64.
        num_steps: optimizer updates.
        batch: samples of a global batch.
        model: a key of `ROWS`.
        batches_per_epoch: largest number of batches of an epoch; the data have 52
            samples.

    Raises:
        ValueError: there are too many rows to pad, or the steps are not whole epochs.
    """
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    if model in SEVERAL:
        raw["model"] = {"type": model, **copy.deepcopy(dict(SEVERAL[model]))}
        raw["loss"]["use_latitude_weights"] = False
    elif model in SECTIONS:
        raw["model"] = {"type": model, **copy.deepcopy(dict(SECTIONS[model]))}
        # CREDIT's weighted loss takes `frames` for missing `levels`.
        raw["loss"]["use_latitude_weights"] = "levels" in raw["model"]
    else:
        raw["model"] |= {"type": model, **_padded(num_rows, _PADDED[model])}
    if model == "graph":
        # The model has no diagnostics, and adds its output to the last of two frames.
        del raw["data"]["source"]["ERA5"]["variables"]["diagnostic"]
        raw["data"]["history_len"] = 2
    per_epoch = min(num_steps, batches_per_epoch)
    if num_steps % per_epoch:
        raise ValueError(
            f"--steps above {batches_per_epoch} must be a multiple of it, "
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
        "weight_decay": 0.01,
    }
    return raw


def _padded(num_rows: int, mode: str) -> dict[str, Any]:
    if not _FEWEST_ROWS <= num_rows <= _PADDED_ROWS - 2:
        raise ValueError(
            f"--rows must be from {_FEWEST_ROWS} to {_PADDED_ROWS - 2}, "
            f"got {num_rows}: the grid is padded to {_PADDED_ROWS} rows"
        )
    top = (_PADDED_ROWS - num_rows) // 2
    return {
        "depth": [*DEPTH],
        "image_height": num_rows,
        "padding_conf": {
            "activate": True,
            "mode": mode,
            "pad_lat": [top, _PADDED_ROWS - num_rows - top],
            "pad_lon": [_PAD_LON, _PAD_LON],
        },
    }


def credit_case(
    model_def: ModelDef,
    state_dict: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    latitude: np.ndarray,
    *,
    trained: Mapping[str, np.ndarray] | None = None,
    further: Mapping[str, np.ndarray] | None = None,
) -> Case:
    """The weights and batches of a run of CREDIT.

    Args:
        model_def: model of credit_jax.
        state_dict: CREDIT's before the first step.
        x, y: the batches that it trained on.
        latitude: latitude in degrees.
        trained: CREDIT's state dict after the last step, to roll out from.
        further: the inputs besides x.
    """
    params, model_state = from_state_dict(model_def, state_dict)
    after = None if trained is None else from_state_dict(model_def, trained)
    return Case(params, model_state, x, y, latitude, after, further or {})
