"""The training jobs of the parity benchmarks: a small model, weights and batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from benchmarks.accuracy.rollout import NOISY, NUM_PROGNOSTIC
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.state_dict.convert import from_state_dict
from tests.models.graph.edges import write_edges

GEN2_CONFIG = Path(__file__).parents[2] / "tests" / "reference" / "gen2.yml"

# Rows of the padded grid: divisible by all strides and windows, on CREDIT's shards too.
_PADDED_ROWS = 64
# Padding at a pole copies rows of the grid, so that it cannot exceed the grid.
_FEWEST_ROWS = 22
_PAD_LON = 16
_BATCHES_PER_EPOCH = 5

_ROWS, _COLUMNS, _NEIGHBORS = 32, 64, 6

_CHANNELS: Mapping[str, Any] = {
    "image_height": _ROWS,
    "image_width": _COLUMNS,
    "frames": 1,
    "channels": 2,
    "levels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
}
_CHANNELS_BY_KIND: Mapping[str, Any] = {
    "image_height": _ROWS,
    "image_width": _COLUMNS,
    "frames": 1,
    "channels": {"boundary": 2, "prognostic": NUM_PROGNOSTIC, "diagnostic": 1},
}
_ENCODER: Mapping[str, Any] = {
    "dim": [8, 16, 32, 64],
    "depth": [1, 1, 1, 1],
    "dim_head": 4,
    "global_window_size": [4, 2, 2, 1],
    "local_window_size": 2,
    "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
    "cross_embed_strides": [2, 2, 2, 2],
    "use_spectral_norm": True,
}
_UNET: Mapping[str, Any] = {
    "architecture": {
        "name": "unet",
        "encoder_name": "resnet18",
        "encoder_weights": None,
        "encoder_depth": 3,
        "decoder_channels": [32, 16, 16],
    }
}
_NOISE: Mapping[str, Any] = {
    "noise_latent_dim": 6,
    "encoder_noise_factor": 0.2,
    "decoder_noise_factor": 0.2,
    "freeze": False,
}

# Padding modes of the released weights of each model; the other keys are GEN2_CONFIG's.
_PADDED: Mapping[str, str] = {
    "wxformer": "earth",
    "crossformer": "mirror",
    "camulator": "earth",
}
# The `model:` sections of the others, without their type.
_SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "fuxi": {
        **_CHANNELS,
        "image_height": 45,
        "patch_height": 2,
        "patch_width": 2,
        "frame_patch_size": 1,
        "dim": 16,
        "num_groups": 4,
        "num_heads": 4,
        "depth": 3,
        "window_size": 5,
        "use_spectral_norm": True,
        "interp": True,
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [1, 2],
            "pad_lon": [2, 2],
        },
    },
    "nextgen_wxformer": {
        **_CHANNELS,
        **_ENCODER,
        "channels": 2,
        "col_attn_heads": 2,
        "num_spectral_nodes": 5,
    },
    "swin": {
        **{k: v for k, v in _CHANNELS.items() if not k.startswith("image")},
        "img_size": [_ROWS, _COLUMNS],
        "patch_size": 2,
        "img_window_ratio": 8,
        "embed_dim": 16,
        "depths": [3],
        "num_heads": [4],
        "mlp_ratio": 2,
        "init_values": None,
        "full_pos_embed": True,
        "rel_pos": False,
        "use_spectral_norm": True,
    },
    **{name: {**_CHANNELS, **_ENCODER, **_NOISE, "interp": True} for name in NOISY},
    "crossformer_downscaling": {**_CHANNELS_BY_KIND, **_ENCODER, "interp": True},
    "unet": {**_CHANNELS, **_UNET},
    "unet_downscaling": {**_CHANNELS_BY_KIND, **_UNET},
    "graph": {
        "n_variables": 2,
        "n_surface_variables": 1,
        "n_static_variables": 2,
        "levels": 2,
        "hidden_size": 16,
        "dim_head": 4,
        "n_blocks": 3,
        # CREDIT's gates iterate between the blocks, too (docs/numerics.md).
        "use_spectral_norm": False,
        "edge_path": "./edges.nc",
    },
    "debugger": _CHANNELS,
}
# Rows of each model's grid; those of the first three and of FuXi divide on no mesh.
ROWS: Mapping[str, int] = {
    "wxformer": 45,
    "crossformer": 32,
    "camulator": 45,
    **{name: section.get("image_height", _ROWS) for name, section in _SECTIONS.items()},
}


@dataclass(frozen=True)
class Case:
    """The weights and batches that every mesh gets.

    Attributes:
        params: parameters by path, whole.
        model_state: its collections (`nn.model_state`), whole.
        x: (step, batch, channel, time, lat, lon).
        y: (step, batch, channel, time, lat, lon).
        latitude: (lat,) degrees, for the weights of the loss.
        trained: parameters and model state to roll out from; None for no rollout.
    """

    params: Mapping[str, Any]
    model_state: Mapping[str, Any]
    x: np.ndarray
    y: np.ndarray
    latitude: np.ndarray
    trained: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None


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
        num_rows: of the grid, below 64.
        num_steps: optimizer updates.
        batch: samples of a global batch.
        model: a key of `ROWS`.
        batches_per_epoch: at most; the data have 52 samples.

    Raises:
        ValueError: there are too many rows to pad, or the steps are not whole epochs.
    """
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    if model in _SECTIONS:
        raw["model"] = {"type": model, **copy.deepcopy(dict(_SECTIONS[model]))}
        # CREDIT's weighted loss takes `frames` for missing `levels`.
        raw["loss"]["use_latitude_weights"] = "levels" in raw["model"]
    else:
        raw["model"] |= {"type": model, **_padded(num_rows, _PADDED[model])}
    if model == "graph":
        # It has no diagnostics, and adds its output to the last of two frames.
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
        "image_height": num_rows,
        "padding_conf": {
            "activate": True,
            "mode": mode,
            "pad_lat": [top, _PADDED_ROWS - num_rows - top],
            "pad_lon": [_PAD_LON, _PAD_LON],
        },
    }


def placed(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The job with the file of the graph's edges, which it writes into `folder`."""
    section = dict(config["model"])
    if "edge_path" in section:
        path = folder / section["edge_path"]
        write_edges(path, _ROWS, _COLUMNS, _NEIGHBORS)
        section["edge_path"] = str(path)
    return {**config, "model": section}


def random_case(
    config: Mapping[str, Any], num_steps: int, latitude: np.ndarray
) -> Case:
    """Random weights and batches, for runs without CREDIT."""
    model_def = build(config["model"])
    weights_key, state_key = jax.random.split(jax.random.key(config["seed"]))
    rng = np.random.default_rng(config["seed"])
    batch = config["trainer"]["train_batch_size"]
    shape = (num_steps, batch, model_def.input_channels, 1)
    grid = (model_def.image_height, model_def.image_width)
    target = (*shape[:2], model_def.output_channels, 1)
    return Case(
        params=model_def.init(weights_key),
        model_state=model_def.init_model_state(state_key),
        x=rng.standard_normal((*shape, *grid)).astype(np.float32),
        y=rng.standard_normal((*target, *grid)).astype(np.float32),
        latitude=latitude,
    )


def credit_case(
    model_def: ModelDef,
    state_dict: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    latitude: np.ndarray,
    *,
    trained: Mapping[str, np.ndarray] | None = None,
) -> Case:
    """The weights and batches of a run of CREDIT.

    Args:
        model_def: ours.
        state_dict: CREDIT's before the first step.
        x, y: the batches that it trained on.
        latitude: in degrees.
        trained: CREDIT's state dict after the last step, to roll out from.
    """
    params, model_state = from_state_dict(model_def, state_dict)
    after = None if trained is None else from_state_dict(model_def, trained)
    return Case(params, model_state, x, y, latitude, after)
