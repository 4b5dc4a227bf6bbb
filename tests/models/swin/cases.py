"""Small `model:` sections that together use every constructor key."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "type": "fuxi",
    "image_height": 22,
    "image_width": 36,
    "patch_height": 2,
    "patch_width": 2,
    "frames": 2,
    "frame_patch_size": 2,
    "channels": 2,
    "levels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "dim": 8,
    "num_groups": 2,
    "num_heads": 2,
    "depth": 3,
    "window_size": 3,
    "use_spectral_norm": True,
    "interp": True,
    "padding_conf": {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [2, 4],
        "pad_lon": [1, 3],
    },
}

FUXI_CASES: dict[str, dict[str, Any]] = {
    # an odd number of blocks, shifted along both dims, 7 x 10 tokens in 9 x 12
    "shifted": BASE,
    # one window of rows, several of columns; an odd number of patches; groups of two
    # kinds; one of three frames is not used
    "one row of windows": {
        **BASE,
        "image_height": 11,
        "image_width": 38,
        "patch_width": 4,
        "frames": 3,
        "num_groups": [2, 4],
        "depth": 2,
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [1, 1],
            "pad_lon": [0, 0],
        },
        "window_size": 4,
    },
    # every kind of dropout, active in training only
    "dropout": {
        **BASE,
        "depth": 2,
        "proj_drop": 0.2,
        "attn_drop": 0.3,
        "drop_path": 0.25,
    },
    # no spectral norm, no padding, no interpolation, windows that fill the grid, one
    # frame
    "plain": {
        **BASE,
        "image_height": 16,
        "image_width": 24,
        "frames": 1,
        "frame_patch_size": 1,
        "use_spectral_norm": False,
        "interp": False,
        "padding_conf": None,
        "window_size": 2,
        "depth": 2,
    },
}

SWIN: dict[str, Any] = {
    "type": "swin",
    "img_size": [24, 48],
    "patch_size": 2,
    "img_window_ratio": 6,
    "channels": 2,
    "levels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "frames": 1,
    "embed_dim": 8,
    "depths": [3],
    "num_heads": [2],
    "mlp_ratio": 2,
    "init_values": None,
    "full_pos_embed": True,
    "rel_pos": False,
    "use_spectral_norm": True,
}

SWIN_CASES: dict[str, dict[str, Any]] = {
    # windows of 4 x 8 tokens, shifted along both dims; columns meet at the date line
    "oblong": SWIN,
    # two stages, a position bias, the mean of two frames, a residual, no spectral norm
    "stages": {
        **SWIN,
        "img_size": [18, 24],
        "window_size": [3, 4],
        "frames": 2,
        "depths": [2, 1],
        "num_heads": [2, 4],
        "full_pos_embed": False,
        "rel_pos": True,
        "residual": True,
        "use_spectral_norm": False,
    },
    # one window of rows
    "one row of windows": {
        **SWIN,
        "img_size": [8, 32],
        "window_size": [8, 4],
        "depths": [2],
        "rel_pos": True,
    },
}
# CREDIT's own model fails with padding; with the tests' fix of its padding it runs.
SWIN_PADDED: dict[str, Any] = {
    **SWIN,
    "img_size": [20, 40],
    "depths": [2],
    "padding_conf": {"activate": True, "mode": "earth", "pad_lat": 2, "pad_lon": 4},
    "residual": True,
}

DSCALE: dict[str, Any] = {
    "type": "dscale",
    "image_height": 22,
    "image_width": 20,
    "patch_height": 2,
    "patch_width": 2,
    "total_input_channels": 5,
    "total_target_channels": 3,
    "time_encode_dim": 4,
    "frames": 2,
    "frame_patch_size": 2,
    "dim": 8,
    "num_groups": 2,
    "num_heads": 2,
    "depth": 2,
    "window_size": 3,
    "padding_conf": {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [1, 1],
        "pad_lon": [2, 2],
    },
}

# 14 x 12 patches of the region with its padding, and of the coarser fields around it
WRF: dict[str, Any] = {
    "type": "wrf",
    "param_interior": {
        "image_height": 26,
        "image_width": 24,
        "patch_height": 2,
        "patch_width": 2,
        "levels": 2,
        "frames": 2,
        "frame_patch_size": 2,
        "channels": 2,
        "surface_channels": 1,
        "input_only_channels": 1,
        "output_only_channels": 2,
        "dim": 8,
    },
    "param_outside": {
        "image_height": 14,
        "image_width": 24,
        "patch_height": 1,
        "patch_width": 2,
        "levels": 3,
        "frames": 1,
        "frame_patch_size": 1,
        "channels": 1,
        "surface_channels": 2,
        "dim": 8,
    },
    "time_encode_dim": 6,
    "num_groups": 4,
    "num_heads": 2,
    "depth": 2,
    "window_size": 3,
    "padding_conf": {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [1, 1],
        "pad_lon": [0, 0],
    },
}
