"""Small models of every architecture, for several benchmarks.

Those of `SECTIONS` take one field and fit the data of `tests/reference/dataset.py`: the
state is T and U on two levels and SP, with two further inputs and one diagnostic. Those
of `SEVERAL` have several inputs, or predict by many forward passes; CREDIT's trainer
cannot run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.models.graph.edges import write_edges

# Channels of the state in the data: T and U on two levels, and SP.
NUM_PROGNOSTIC = 5
# All draws of these models are replaced by ones, as the random generators of CREDIT and
# credit_jax differ.
NOISY = ("crossformer-ensemble", "crossformer-style")
# Both sides compute these in float64: ReLU after batch norms amplifies rounding, so
# that CREDIT with two threads is 5e-3 from CREDIT with one after 15 updates.
WIDE = ("unet", "unet_downscaling")

SMALL_ROWS, _COLUMNS, _NEIGHBORS = 32, 64, 6

_CHANNELS: Mapping[str, Any] = {
    "image_height": SMALL_ROWS,
    "image_width": _COLUMNS,
    "frames": 1,
    "channels": 2,
    "levels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
}
_CHANNELS_BY_KIND: Mapping[str, Any] = {
    "image_height": SMALL_ROWS,
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

# The `model:` sections by their type, without it.
SECTIONS: Mapping[str, Mapping[str, Any]] = {
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
        "col_attn_heads": 2,
        "num_spectral_nodes": 5,
    },
    "swin": {
        **{k: v for k, v in _CHANNELS.items() if not k.startswith("image")},
        "img_size": [SMALL_ROWS, _COLUMNS],
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
        "use_spectral_norm": True,
        "edge_path": "./edges.nc",
    },
    "debugger": _CHANNELS,
}
_DIFFUSION: Mapping[str, Any] = {
    "image_size": [SMALL_ROWS, _COLUMNS],
    "timesteps": 50,
    "sampling_timesteps": 5,
}
_DIM = 16
_U_TRANSFORMER: Mapping[str, Any] = {
    "num_groups": 4,
    "num_heads": 4,
    "depth": 2,
    "window_size": 3,
    "use_spectral_norm": True,
    "padding_conf": {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [1, 1],
        "pad_lon": [0, 0],
    },
}


def _wrf(dim: int) -> dict[str, Any]:
    """Sections with 18 x 32 patches of the padded region and the fields around it."""
    common = {"levels": 2, "channels": 2, "surface_channels": 1, "dim": dim}
    region = {
        **common,
        "image_height": SMALL_ROWS + 2,
        "image_width": _COLUMNS,
        "patch_height": 2,
        "patch_width": 2,
        "frames": 2,
        "frame_patch_size": 2,
        "input_only_channels": 2,
        "output_only_channels": 1,
    }
    around = {
        **common,
        "image_height": SMALL_ROWS // 2 + 2,
        "image_width": _COLUMNS // 2,
        "patch_height": 1,
        "patch_width": 1,
        "frames": 1,
        "frame_patch_size": 1,
    }
    return {"param_interior": region, "param_outside": around}


SEVERAL: Mapping[str, Mapping[str, Any]] = {
    "wrf": {**_U_TRANSFORMER, **_wrf(_DIM), "time_encode_dim": 6},
    "dscale": {
        **_U_TRANSFORMER,
        "image_height": SMALL_ROWS + 2,
        "image_width": _COLUMNS,
        "patch_height": 2,
        "patch_width": 2,
        "total_input_channels": 7,
        "total_target_channels": 6,
        "time_encode_dim": 6,
        "frames": 2,
        "frame_patch_size": 2,
        "dim": _DIM,
    },
    "crossformer-diffusion": {
        **_CHANNELS,
        **_ENCODER,
        "interp": True,
        "diffusion": _DIFFUSION,
    },
    "unet-diffusion": {
        **_CHANNELS,
        "dim": [8],
        "dim_mults": [1, 2, 4],
        "attn_dim_head": 4,
        "attn_heads": 2,
        "padding_conf": {"activate": False},
        "diffusion": _DIFFUSION,
    },
}
# Keys that make the models wide enough to time, by type.
_WIDE_ENCODER: Mapping[str, Any] = {"dim": [32, 64, 128, 256], "dim_head": 16}
WIDER: Mapping[str, Mapping[str, Any]] = {
    "fuxi": {"dim": 128, "num_groups": 32, "num_heads": 8},
    "nextgen_wxformer": _WIDE_ENCODER,
    "swin": {"embed_dim": 96, "num_heads": [6]},
    **dict.fromkeys(NOISY, _WIDE_ENCODER),
    "crossformer_downscaling": _WIDE_ENCODER,
    "graph": {"hidden_size": 64, "dim_head": 16},
    "wrf": {**_wrf(128), "num_groups": 32, "num_heads": 8},
    "dscale": {"dim": 128, "num_groups": 32, "num_heads": 8},
    "crossformer-diffusion": _WIDE_ENCODER,
    "unet-diffusion": {"dim": [32], "attn_dim_head": 16, "attn_heads": 4},
}


def placed(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the job after writing the graph's edges, if any, to `folder`."""
    section = dict(config["model"])
    if "edge_path" in section:
        path = folder / section["edge_path"]
        write_edges(path, SMALL_ROWS, _COLUMNS, _NEIGHBORS)
        section["edge_path"] = str(path)
    return {**config, "model": section}
