"""Small `model:` sections that between them use every constructor key."""

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
    # kinds; one of three frames is not seen
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
    # every kind of dropout, which only training uses
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
