"""Small `model:` sections that together use every key of `unet`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "name": "unet",
    "encoder_name": "resnet18",
    "encoder_weights": None,
    "decoder_channels": [32, 32, 16, 16, 16],
}

BASE: dict[str, Any] = {
    "type": "unet",
    "image_height": 32,
    "image_width": 64,
    "frames": 2,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "levels": 2,
    "architecture": SMALL,
}

CASES: dict[str, dict[str, Any]] = {
    # two frames, which enter as their mean
    "two frames": BASE,
    # sizes that no power of two divides, an encoder that stops early, interpolation, a
    # decoder with biases instead of norms
    "odd": {
        **BASE,
        "image_height": 45,
        "image_width": 38,
        "frames": 1,
        "architecture": {
            **SMALL,
            "encoder_depth": 3,
            "decoder_channels": [32, 16, 32],
            "decoder_interpolation": "bilinear",
            "decoder_use_norm": False,
            "activation": "tanh",
        },
    },
    # bottlenecks of several groups, normalization of each sample
    "groups": {
        **BASE,
        "image_height": 16,
        "image_width": 24,
        "frames": 1,
        "architecture": {
            **SMALL,
            "encoder_name": "resnext50_32x4d",
            "encoder_depth": 3,
            "decoder_channels": [16, 16, 16],
            "decoder_use_norm": {"type": "instancenorm", "affine": True, "eps": 1e-4},
        },
    },
    # as many channels out as in, other numbers of the decoder's batch norms
    "tendency": {
        **BASE,
        "image_height": 12,
        "image_width": 16,
        "frames": 1,
        "input_only_channels": 0,
        "output_only_channels": 0,
        "rk4_integration": True,
        "architecture": {
            **SMALL,
            "encoder_depth": 3,
            "decoder_channels": [32, 16, 16],
            "decoder_interpolation": "area",
            "decoder_use_norm": {"type": "batchnorm", "eps": 1e-4, "momentum": 0.2},
        },
    },
}

DOWNSCALING: dict[str, Any] = {
    "type": "unet_downscaling",
    "image_height": 32,
    "image_width": 32,
    "frames": 3,
    "channels": {"boundary": 3, "prognostic": 4, "diagnostic": 2},
    "architecture": {
        **SMALL,
        "encoder_depth": 4,
        "decoder_channels": [32, 16, 16, 16],
        "decoder_interpolation": "nearest-exact",
    },
}

_DENOISER: dict[str, Any] = {
    **{k: v for k, v in BASE.items() if k != "architecture"},
    "type": "unet-diffusion",
    "image_height": 16,
    "image_width": 24,
    "frames": 1,
    "dim": [8],
    "dim_mults": [1, 2, 3],
    "attn_dim_head": 4,
    "attn_heads": 2,
}

# `unet-diffusion`: a target without noise, given the input.
DIFFUSION_CASES: dict[str, dict[str, Any]] = {
    # padding, 20 rows, attention between all points on the last level
    "padded": {
        **_DENOISER,
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [3, 1],
            "pad_lon": [2, 2],
        },
        "diffusion": {
            "image_size": [16, 24],
            "timesteps": 50,
            "sampling_timesteps": 4,
            "objective": "pred_x0",
            "clip_denoised": False,
        },
    },
    # keys of CREDIT's unet_diffusion_6hr_CAM.yml: text for the kind of attention, which
    # is full on every level, and no sampler steps
    "text": {
        **_DENOISER,
        "image_height": 10,
        "image_width": 12,
        "dim_mults": [1, 2],
        "full_attn": "None",
        "diffusion": {
            "image_size": [10, 12],
            "timesteps": 30,
            "sampling_timesteps": 0,
            "beta_schedule": "linear",
        },
    },
    # another first width, attention set per level (CREDIT supports no lists), DDPM of v
    "own levels": {
        **_DENOISER,
        "image_height": 10,
        "image_width": 12,
        "init_dim": 6,
        "dim_mults": [2, 1],
        "attn_dim_head": (4, 6),
        "attn_heads": (3, 2),
        "full_attn": (True, False),
        "sinusoidal_pos_emb_theta": 1000,
        "diffusion": {
            "image_size": [10, 12],
            "timesteps": 30,
            "beta_schedule": "linear",
        },
    },
}
