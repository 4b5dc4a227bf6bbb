"""The small form of the demo that the matrix trains: its data, losses and schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from credit_jax.config.yaml_file import read_yaml

_DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
# Attention whose heads tp divides and whose rows domain divides or not, with spectral
# norm: every kind of state, and two seconds of tracing.
_MODEL: dict[str, Any] = {
    "type": "swin",
    "img_size": [32, 64],
    "patch_size": 2,
    "img_window_ratio": 8,
    "embed_dim": 16,
    "depths": [2],
    "num_heads": [4],
    "mlp_ratio": 2,
    "init_values": None,
    "full_pos_embed": True,
    "rel_pos": False,
    "use_spectral_norm": True,
}
_CHANNELS = (
    "frames",
    "levels",
    "channels",
    "surface_channels",
    "input_only_channels",
    "output_only_channels",
)


def small_demo(data: Path, *, epochs: int) -> dict[str, Any]:
    """Returns a config of 6 updates per epoch, each with 2 samples, without a mesh.

    Args:
        data: folder of the demo data, 20 days.
        epochs: epochs of the run.
    """
    config = _in_folder(read_yaml(_DEMO), str(data))
    config["save_loc"] = str(data.with_name("run"))
    config["demo"] |= {"days": 20, "spinup_days": 4, "held_out_days": 6}
    config["data"] |= {"end_datetime": "2000-01-14T18:00"}
    config["validation_data"] = {
        "start_datetime": "2000-01-16",
        "end_datetime": "2000-01-20T18:00",
    }
    config["model"] = _MODEL | {key: config["model"][key] for key in _CHANNELS}
    config["trainer"] |= {
        "epochs": epochs,
        "batches_per_epoch": 6,
        "valid_batch_size": 2,
        "valid_batches_per_epoch": 1,
        "learning_rate": 1e-4,
        "save_every_steps": 2,
        "use_tensorboard": False,
    }
    return config


def _in_folder(value: Any, data: str) -> Any:
    """The config with the folder of its data replaced."""
    if isinstance(value, dict):
        return {key: _in_folder(item, data) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_folder(item, data) for item in value]
    if isinstance(value, str):
        return value.replace("demo_data/T21", data)
    return value
