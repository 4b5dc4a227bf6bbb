"""What the `model:` sections of all models refuse, warn of, and have as defaults."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any
from unittest.mock import ANY

import pytest

from credit_jax.models.diffusion.process import DiffusionConfig
from credit_jax.models.registry import MODELS, build, parse_model
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.models.cases import Section
from tests.models.conftest import section_of
from tests.models.parity import credits_parameters

# In place of a value: the key is absent.
ABSENT = "ABSENT"
CASES = Cases("models")

Rows = Mapping[str, list[Section]]


def changed(section: Section, changes: Section) -> Section:
    """Returns a section with other values; "a.b" is a key of its section a."""
    new = dict(section)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        new[first] = changed(new[first], {rest: value}) if rest else value
    return {key: value for key, value in new.items() if value is not ABSENT}


_BELOW_STRIDE = {"cross_embed_kernel_sizes": [[1, 4], [2, 4], [2, 4], [2, 4]]}
_WINDOW = {"local_window_size": 3}
_NO_OUTPUT = {"channels": 0, "surface_channels": 0, "output_only_channels": 0}


def _norm(value: Any) -> Section:
    return {"architecture.decoder_use_norm": value}


# By case: changes of the section.
WRONG: Rows = {
    "crossformer mirror": [
        _BELOW_STRIDE,
        {"cross_embed_kernel_sizes": [[4, 5], [2, 4], [2, 4], [2, 4]]},
        {
            "interp": False,
            "cross_embed_strides": [4, 2, 2, 2],
            "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
            "depth": [0, 0, 0, 0],
        },
        {"cross_embed_kernel_sizes": [[], [2, 4], [2, 4], [2, 4]]},
        {"padding_conf": None, "pad_lat": 80, "pad_lon": 40},
        {"attention_type": "scse"},
        {"diffusion": True},
        {"upsample_conv": True},
    ],
    "camulator two frames": [
        {"frames": 4},
        _BELOW_STRIDE,
        {"patch_height": 2},
        _WINDOW,
        {"frame": 2},
    ],
    "crossformer_downscaling mirror": [
        {"frames": 4},
        {"channels": 4},
        {"channels.diagnostic": ABSENT},
        {"channels.prognostic": 0, "channels.diagnostic": 0},
        _BELOW_STRIDE,
    ],
    "nextgen levels": [
        {"col_attn_heads": 3},
        {"col_attn_stride": 33},
        {"channels": 0},
        _WINDOW,
        {"dim": [12, 16, 32, 64]},
        {"cross_embed_kernel_sizes": [[2, 4], [2, 4]]},
        {"num_nodes": 2},
    ],
    "ensemble frozen": [
        {"frames": 2},
        {"output_frames": 2},
        {"patch_height": 2, "patch_width": 2} | {"image_height": 64, "image_width": 64},
        {"dim": [8, 16, 16, 64]},
        {"noise_dim": 3},
    ],
    "diffusion noise": [
        {"patch_height": 2, "patch_width": 2},
    ],
    "diffusion v": [
        {"frames": 2},
        {"diffusion.image_size": [32, 30]},
        {"diffusion.sampling_timesteps": -1},
        {"diffusion.sampling_timesteps": 51},
        {"diffusion.beta_schedule": "linear", "diffusion.timesteps": 20},
        {"diffusion.condition": False},
        {"diffusion.self_condition": True},
        {"diffusion.immiscible": True},
        {"diffusion.ddim_sampling_eta": 2},
        {"diffusion.schedule_fn_kwargs": {"s": 1}},
        {"diffusion.steps": 3},
        {"diffusion": ABSENT},
    ],
    "fuxi shifted": [
        {"frames": 4},
        {"frames": 1},
        {"num_heads": 3},
        {"num_groups": [2, 3]},
        {"window_size": 1},
        {"window_size": [3, 4]},
        {"depth": -1},
        {"patch_width": 4, "padding_conf": None},
        {"patch_height": 32},
        {"padding_conf": {"mode": "mirror", "pad_lat": [22, 22], "pad_lon": 2}},
        {"padding_conf": None, "pad_lat": 80, "pad_lon": 80},
        {"interp": False, "padding_conf": None}
        | {"image_height": 24, "image_width": 38},
        _NO_OUTPUT,
        {"drop_path": 1.0},
        {"use_noise": True},
        {"freeze": True},
        {"windowsize": 7},
    ],
    "swin oblong": [
        {"patch_size": 5},
        {"window_size": [5, 8]},
        {"img_window_ratio": 5},
        {"img_window_ratio": 40},
        {"num_heads": [3]},
        {"depths": [2, 2]},
        {"frames": 4},
        {"residual": True, "output_only_channels": 3},
        {"drop_path_rate": -0.1},
        {"mlp_ratio": 0},
        {"padding_conf": {"mode": "earth", "pad_lat": 30, "pad_lon": 0}},
        {"depth": [2]},
    ],
    "region wrf": [
        {"param_outside.image_height": 12},
        {"param_outside.dim": 4},
        {"param_outside.frames": 4},
        {"param_interior.frames": 1},
        {"param_outside.channels": 0, "param_outside.surface_channels": 0},
        {"param_outside": ABSENT},
    ],
    "region dscale": [
        {"num_heads": 3},
        {"attn_drop": 1.5},
        {"input_channels": 3},
    ],
    "unet two frames": [
        {"architecture.name": "unet++"},
        {"architecture.encoder_name": "vgg16"},
        _norm("LayerNorm"),
        _norm("rmsnorm"),
        _norm({"type": "batchnorm", "affine": False}),
        {"architecture.encoder_depth": 4},
        {"architecture.decoder_channels": [64, 32, 16, 16, 8]},
        {"architecture.activation": "softmax"},
        {"frames": 4},
        {"rk4_integration": True},
        {"architecture": None},
    ],
    "unet-diffusion padded": [
        {"frames": 2},
        {"image_height": 18},
        {"dim_mults": [1] * 5},
        {"dim": [7]},
        {"attn_heads": [1, 2]},
        {"full_attn": [True]},
        {"learned_sinusoidal_cond": True},
        {"dropout": 1.0},
        _NO_OUTPUT,
        {"gen1_post_conf": {"activate": False}},
        {"dimension": 3},
    ],
    "graph attributes": [
        {"history_len": 1},
        {"dim_head": 3},
        {"dropout": 1.0},
        {"n_variables": 0, "n_surface_variables": 0},
        {"n_blocks": 10**9},
        {"frames": 2},
    ],
    "debugger frames": [
        _NO_OUTPUT,
    ],
}


def build_changed(name: str, change: Section, edge_path: str) -> None:
    build(changed(section_of(name, edge_path), change))


def of_rows(rows: Rows) -> list[tuple[str, Section]]:
    return [(name, change) for name, some in rows.items() for change in some]


CASES.rows(build_changed, *of_rows(WRONG))

# Keys that CREDIT accepts without effect, by case.
IGNORED = {
    "crossformer mirror": ("frame_patch_size", "static_channels"),
    "camulator two frames": (
        *("output_frames", "upsample_v_conv", "attention_type", "frame_patch_size"),
    ),
    "crossformer_downscaling mirror": ("output_frames", "upsample_v_conv", "levels"),
    "nextgen levels": (
        *("padding_conf", "post_conf", "interp", "attn_dropout", "output_frames"),
    ),
    "diffusion v": ("attention_type",),
    "swin oblong": ("interp", "drop_rate", "in_chans"),
    "region wrf": ("proj_drop",),
    "region dscale": ("levels",),
    "unet two frames": ("padding_conf",),
    "unet-diffusion padded": ("depth",),
}
WARNED: Rows = {
    "crossformer mirror": [
        {"pad_lat": 80, "pad_lon": 80},
    ],
    "camulator three frames": [
        {},
    ],
    "nextgen levels": [
        {"output_only_channels": 1},
    ],
    "ensemble frozen": [
        {"pretrained_weights": "x"},
        {"noise_scheduler": "x"},
    ],
    "diffusion v": [
        {"diffusion.auto_normalize": False},
    ],
    "fuxi shifted": [
        {"output_frames": 1},
        {"noise_factor": 1},
        {"frames": 3},
        {"use_spectral_norm": False, "train_qkv": True},
        {"pad_lat": 80},
    ],
    "swin oblong": [
        {"frames": 3},
    ],
    "unet two frames": [
        {"architecture": {"name": "unet", "encoder_weights": "imagenet"}},
    ],
    "unet-diffusion padded": [
        {"dim": [8, 3]},
        {"full_attn": "None"},
        {"diffusion.sampling_timesteps": 0},
    ],
    "debugger frames": [
        {"use_spectral_norm": True},
    ],
}


def parse_changed(name: str, change: Section, edge_path: str) -> None:
    parse_model(changed(section_of(name, edge_path), change))


CASES.rows(parse_changed, *of_rows(WARNED))
CASES.rows(
    parse_changed, *((name, {key: 1}) for name, keys in IGNORED.items() for key in keys)
)


def test_what_asks_for_nothing_is_accepted() -> None:
    block = section_of("crossformer mirror", "")
    nothing = {"attention_type": "None", "diffusion": False}
    nothing["post_conf"] = {"activate": False, "tracer_fixer": {"activate": True}}
    config: Any = parse_model({**block, **nothing})
    assert config.attention_type is None
    assert hash(config) == hash(parse_model(block)), "equal configs, one program"
    assert not any(config.problems())


# By type: the class of CREDIT, and its defaults that are not those here: CREDIT fails
# with them, or they are no key here.
DEFAULTS: Mapping[str, tuple[str, Section]] = {
    "crossformer": ("models.crossformer.CrossFormer", {}),
    "camulator": ("models.camulator.Camulator", {}),
    "crossformer_downscaling": (
        "models.wxformer.crossformer_downscaling.DownscalingCrossFormer",
        {},
    ),
    "nextgen_wxformer": ("models.wxformer.wxformer_next.NextGenWXFormer", {}),
    "crossformer-ensemble": (
        "models.wxformer.crossformer_ensemble.CrossFormerWithNoise",
        {},
    ),
    "crossformer-diffusion": (
        "models.wxformer.crossformer_diffusion.CrossFormerDiffusion",
        {"frames": 2, "self_condition": False, "condition": True},
    ),
    "process": ("diffusion.GaussianDiffusion", {"model": ANY}),
    "fuxi": ("models.fuxi.Fuxi", {}),
    "swin": ("models.swin.SwinTransformerV2Cr", {"norm_layer": ANY}),
    "wrf": ("models.swin_wrf.WRFTransformer", {}),
    "dscale": ("models.dscale_wrf.DscaleTransformer", {}),
    "unet": ("models.unet.SegmentationModel", {"architecture": None}),
    "unet_downscaling": (
        "models.unet_downscaling.DownscalingSegmentationModel",
        {"architecture": None},
    ),
    "unet-diffusion": (
        "models.unet_diffusion.UnetDiffusion",
        {"frames": 2, "self_condition": False, "condition": False},
    ),
    "graph": ("models.graph.GraphResTransfGRU", {"edge_path": ANY}),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_defaults_are_those_of_credit(credit: Any, kind: str):
    """Every parameter of CREDIT's class is a key, if only to be refused."""
    where, others = DEFAULTS[kind]
    config = DiffusionConfig if kind == "process" else MODELS[kind].config
    for name, theirs in credits_parameters(where).items():
        if name in others:
            assert theirs == others[name], name
        elif name in config.model_fields:
            ours = config.model_fields[name].get_default(call_default_factory=True)
            pair = isinstance(ours, tuple) and isinstance(theirs, int)
            expected = (theirs,) * len(ours) if pair else theirs
            assert theirs is Parameter.empty or ours == expected, name
        else:
            assert name in {*config.ignored, *config.unavailable}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "dscale"},
        {"type": "crossformer-diffusion", "diffusion": {"image_size": [640, 1280]}},
        {"type": "unet-diffusion", "diffusion": {"image_size": [640, 1280]}},
    ],
    ids=lambda given: given["type"],
)
def test_the_defaults_make_a_model(given: Section):
    assert not any(parse_model(given).problems())
