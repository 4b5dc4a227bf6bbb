"""Small `model:` sections that together use every constructor key of each model."""

from __future__ import annotations

from typing import Any

# Most of the time is compilation, which grows with the number of blocks. The blocks of
# all stages differ only in their windows: "uneven" has blocks in every stage, the other
# cases in one or two, and one case of each model has a stage of several blocks.
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
    "depth": [1, 0, 2, 0],
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

# Experts in place of the feed-forward networks of one stage.
EXPERTS = {
    **BASE,
    "type": "wxformer_moe",
    "depth": [0, 0, 2, 0],
    "num_experts": 4,
    "moe_top_k": 2,
    "moe_router_z_loss_weight": 0.001,
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
        "depth": [1, 0, 0, 1],
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
    # patches, no padding, even kernels that pad unevenly
    "patches": {
        **BASE,
        "type": "wxformer_base",
        "image_height": 64,
        "image_width": 64,
        "patch_height": 2,
        "patch_width": 2,
        "depth": [0, 1, 0, 0],
        "cross_embed_kernel_sizes": [[3, 4], [2, 5], [2, 4], [2, 4]],
        "padding_conf": None,
    },
    # no interpolation: the decoder gives the grid itself
    "plain": {
        **BASE,
        "image_height": 32,
        "interp": False,
        "padding_conf": None,
        "depth": [0, 0, 1, 0],
    },
}

_OLDER = {**BASE, "type": "crossformer"}

# The same for `crossformer`, every kind of attention and both decoders.
# 8 and 2 bands of windows: strips wherever shards do not divide them.
STRIPS: dict[str, Any] = {
    **BASE,
    "image_height": 80,
    "image_width": 80,
    "dim": [4, 8, 16, 32],
    "depth": [1, 0, 1, 0],
    "dim_head": 2,
    "interp": False,
    "local_window_size": 5,
    "global_window_size": [4, 2, 2, 1],
    "padding_conf": {"activate": False},
}

CROSSFORMER_CASES: dict[str, dict[str, Any]] = {
    # a small version of the released model: transposed convolutions, reflected poles,
    # spectral norm; 45 rows, a stage of two blocks
    "mirror": {
        **_OLDER,
        "image_height": 45,
        "image_width": 56,
        "depth": [1, 0, 2, 0],
        "cross_embed_kernel_sizes": [[4, 8, 16], [2, 4], [2], [2, 4]],
        "padding_conf": {
            "activate": True,
            "mode": "mirror",
            "pad_lat": [9, 10],
            "pad_lon": [3, 5],
        },
        "global_window_size": [4, 2, 4, 1],
    },
    # the other decoder, attention of channels and of points, two frames in and out,
    # interpolation from half the grid
    "interpolating": {
        **_OLDER,
        "image_height": 60,
        "image_width": 64,
        "frames": 2,
        "output_frames": 2,
        "depth": [0, 1, 0, 0],
        "cross_embed_strides": [4, 2, 2, 2],
        "global_window_size": [4, 2, 2, 1],
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [2, 2],
            "pad_lon": [0, 0],
        },
        "upsample_v_conv": True,
        "attention_type": "mixed",
    },
    # patches, gates with a depthwise layer under spectral norm
    "patches": {
        **_OLDER,
        "image_height": 64,
        "image_width": 64,
        "patch_height": 2,
        "patch_width": 2,
        "depth": [0, 0, 1, 0],
        "padding_conf": None,
        "attention_type": "scse_optimized",
    },
    # gates of rows and columns, with batch norms
    "coordinates": {
        **_OLDER,
        "depth": [0, 0, 1, 0],
        "attention_type": "coordinate",
    },
    # odd kernels with an even stride cost a row and a column: 34 -> 16, not 17
    "odd": {
        **_OLDER,
        "image_height": 34,
        "image_width": 34,
        "depth": [1, 0, 0, 0],
        "cross_embed_kernel_sizes": [[3, 5], [2, 4], [2, 4], [2, 4]],
        "padding_conf": None,
        "use_spectral_norm": False,
        "attention_type": "SCSE_standard",
    },
}

_EMULATOR = {**BASE, "type": "camulator"}

# `camulator`: sharpening without spectral norm, frames by their mean.
CAMULATOR_CASES: dict[str, dict[str, Any]] = {
    # a small version of the released model: earth padding, odd windows, one frame; 45
    # rows, a stage of three blocks
    "earth": {
        **_EMULATOR,
        "image_height": 45,
        "image_width": 44,
        "depth": [1, 0, 3, 0],
        "cross_embed_kernel_sizes": [[4, 8, 16], [2, 4], [2], [2, 4]],
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [1, 2],
            "pad_lon": [1, 3],
        },
        "local_window_size": 3,
        "global_window_size": [4, 3, 2, 1],
    },
    # the mean of two frames, no interpolation
    "two frames": {
        **_EMULATOR,
        "image_height": 32,
        "frames": 2,
        "depth": [0, 0, 1, 0],
        "padding_conf": None,
        "interp": False,
    },
    # three frames, of which the last is not used; interpolation from half the grid, no
    # spectral norm
    "three frames": {
        **_EMULATOR,
        "image_height": 60,
        "image_width": 64,
        "frames": 3,
        "depth": [1, 0, 0, 0],
        "cross_embed_strides": [4, 2, 2, 2],
        "global_window_size": [4, 2, 2, 1],
        "use_spectral_norm": False,
        "padding_conf": {
            "activate": True,
            "mode": "mirror",
            "pad_lat": [2, 2],
            "pad_lon": [0, 0],
        },
    },
    # patches over two frames
    "patches": {
        **_EMULATOR,
        "image_height": 64,
        "image_width": 64,
        "frames": 2,
        "patch_height": 2,
        "patch_width": 2,
        "depth": [0, 0, 1, 0],
        "padding_conf": None,
    },
}

_REGIONAL = {
    **{
        key: value
        for key, value in BASE.items()
        if not key.endswith("_channels") and key != "levels"
    },
    "type": "crossformer_downscaling",
    "channels": {"boundary": 3, "prognostic": 4, "diagnostic": 2},
}

# `crossformer_downscaling`: transposed convolutions, channels by kind.
DOWNSCALING_CASES: dict[str, dict[str, Any]] = {
    # reflected edges, 45 rows, two frames
    "mirror": {
        **_REGIONAL,
        "image_height": 45,
        "image_width": 44,
        "frames": 2,
        "depth": [1, 0, 1, 0],
        "padding_conf": {
            "activate": True,
            "mode": "mirror",
            "pad_lat": [1, 2],
            "pad_lon": [2, 2],
        },
        "local_window_size": 3,
        "global_window_size": [4, 3, 2, 1],
    },
    # one frame in patches, no spectral norm, no diagnostic
    "patches": {
        **_REGIONAL,
        "image_height": 64,
        "image_width": 64,
        "frames": 1,
        "channels": {"boundary": 0, "prognostic": 5, "diagnostic": 0},
        "patch_height": 2,
        "patch_width": 2,
        "depth": [0, 0, 1, 0],
        "use_spectral_norm": False,
        "padding_conf": None,
    },
}

_NEXT = {
    **{k: v for k, v in BASE.items() if k not in ("interp", "padding_conf")},
    "type": "nextgen_wxformer",
    "image_height": 32,
    "channels": 4,
    "col_attn_heads": 2,
    "num_spectral_nodes": 5,
}

# `nextgen_wxformer`: attention over levels, spectral nodes, the last frame added.
NEXTGEN_CASES: dict[str, dict[str, Any]] = {
    # two frames, means of 3 x 3 points with a row left over; attention over levels
    # after the decoder, too; fewer outputs than inputs
    "levels": {
        **_NEXT,
        "frames": 2,
        "levels": 3,
        "output_only_channels": 0,
        "depth": [0, 0, 2, 0],
        "col_attn_stride": 3,
        "decoder_col_attn": True,
    },
    # stages of 22, 11, 5 and 2 rows: interpolation between the blocks of the decoder;
    # diagnostics that start at 0
    "odd": {
        **_NEXT,
        "image_height": 45,
        "image_width": 44,
        "frames": 1,
        "input_only_channels": 0,
        "output_only_channels": 2,
        "depth": [1, 0, 1, 0],
        "global_window_size": [2, 1, 5, 2],
        "local_window_size": [2, 11, 1, 1],
        "use_spectral_norm": False,
    },
}

_NOISY = {
    **_OLDER,
    "type": "crossformer-ensemble",
    "image_height": 32,
    "depth": [0, 0, 1, 0],
    "noise_latent_dim": 6,
}

# `crossformer-ensemble` and `crossformer-style`: noise after stages and blocks.
ENSEMBLE_CASES: dict[str, dict[str, Any]] = {
    # padding, frozen weights, another latent noise for each layer
    "frozen": {**_NOISY, "image_height": 30},
    # all weights trained, one latent noise for all layers of the decoder
    "trained": {
        **_NOISY,
        "type": "crossformer-style",
        "dim": [8, 16, 32, 64],
        "padding_conf": None,
        "encoder_noise": False,
        "decoder_noise_factor": 0.4,
        "freeze": False,
        "correlated": True,
        "use_spectral_norm": False,
    },
    # noise everywhere by one latent noise
    "correlated": {
        **_NOISY,
        "padding_conf": None,
        "encoder_noise_factor": 0.3,
        "freeze": False,
        "correlated": True,
    },
}

_DENOISER = {
    **_OLDER,
    "type": "crossformer-diffusion",
    "image_height": 32,
    "dim": [4, 8, 16, 32],
    "depth": [0, 0, 1, 0],
    "padding_conf": None,
}

# `crossformer-diffusion`: a target without noise, given the input.
DIFFUSION_CASES: dict[str, dict[str, Any]] = {
    # padding, v, DDIM of 5 steps
    "v": {
        **_DENOISER,
        "image_height": 30,
        "padding_conf": {
            "activate": True,
            "mode": "earth",
            "pad_lat": [1, 1],
            "pad_lon": [1, 1],
        },
        "image_width": 30,
        "diffusion": {
            "image_size": [30, 30],
            "timesteps": 50,
            "sampling_timesteps": 5,
            "ddim_sampling_eta": 0.5,
        },
    },
    # no interpolation, no spectral norm, the noise, DDPM of all steps
    "noise": {
        **_DENOISER,
        "use_spectral_norm": False,
        "interp": False,
        "diffusion": {
            "image_size": 32,
            "timesteps": 24,
            "objective": "pred_noise",
            "beta_schedule": "linear",
            "min_snr_loss_weight": True,
            "min_snr_gamma": 3.0,
        },
    },
    # the target itself, without a clamp, log-uniform noise
    "target": {
        **_DENOISER,
        "diffusion": {
            "image_size": 32,
            "timesteps": 50,
            "sampling_timesteps": 3,
            "objective": "pred_x0",
            "beta_schedule": "cosine",
            "schedule_fn_kwargs": {"s": 0.02},
            "noise_type": "log-uniform",
        },
    },
}
