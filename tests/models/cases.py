"""Small `model:` blocks that between them use every constructor key of WXFormer."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "type": "wxformer",
    "image_height": 30,
    "image_width": 32,
    "frames": 1,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "levels": 2,
    "dim": [8, 16, 32, 64],
    "depth": [1, 1, 2, 1],
    "dim_head": 4,
    "global_window_size": [4, 2, 2, 1],
    "local_window_size": 2,
    "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
    "cross_embed_strides": [2, 2, 2, 2],
    "use_spectral_norm": True,
    "interp": True,
    "padding_conf": {
        "activate": True,
        "mode": "earth",
        "pad_lat": [1, 1],
        "pad_lon": [0, 0],
    },
}

CASES: dict[str, dict[str, Any]] = {
    # earth padding, spectral norm, a stage of two blocks
    "earth": BASE,
    # 45 rows, padding of different width at each end, three kernels
    "uneven": {
        **BASE,
        "image_height": 45,
        "image_width": 56,
        "depth": [1, 1, 1, 1],
        "cross_embed_kernel_sizes": [[4, 8, 16], [2, 4], [2], [2, 4]],
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [9, 10],
            "pad_lon": [3, 5],
        },
        "global_window_size": [4, 2, 4, 1],
    },
    # reflected poles, no spectral norm, two frames in and out, odd windows, and
    # interpolation from half the grid (strides 4, 2, 2, 2, a decoder of 16)
    "frames": {
        **BASE,
        "image_height": 88,
        "image_width": 92,
        "frames": 2,
        "output_frames": 2,
        "depth": [1, 1, 1, 1],
        "use_spectral_norm": False,
        "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
        "cross_embed_strides": [4, 2, 2, 2],
        "local_window_size": 3,
        "global_window_size": [3, 3, 3, 3],
        "padding_conf": {
            "activate": True,
            "mode": "mirror",
            "pad_lat": [4, 4],
            "pad_lon": [1, 3],
        },
    },
    # patches, no padding, even kernels that pad unevenly, an empty stage
    "patches": {
        **BASE,
        "type": "wxformer_base",
        "image_height": 64,
        "image_width": 64,
        "patch_height": 2,
        "patch_width": 2,
        "depth": [1, 0, 1, 1],
        "cross_embed_kernel_sizes": [[3, 4], [2, 5], [2, 4], [2, 4]],
        "padding_conf": None,
    },
    # no interpolation: the decoder gives the grid itself
    "plain": {
        **BASE,
        "image_height": 32,
        "interp": False,
        "padding_conf": None,
        "depth": [1, 1, 1, 1],
    },
}
