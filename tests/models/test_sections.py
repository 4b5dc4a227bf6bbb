"""What the `model:` sections of all models refuse, warn of, and have as defaults."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any
from unittest.mock import ANY

import pytest

from credit_jax.models.diffusion.config import DiffusionConfig
from credit_jax.models.registry import MODELS, build, parse_model
from tests.models.cases import CASES, Section
from tests.models.parity import credits_parameters

# In place of a value: the key is absent.
ABSENT = object()

Rows = Mapping[str, list[tuple[Section, str]]]


def changed(section: Section, changes: Section) -> Section:
    """Returns a section with other values; "a.b" is a key of its section a."""
    new = dict(section)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        new[first] = changed(new[first], {rest: value}) if rest else value
    return {key: value for key, value in new.items() if value is not ABSENT}


def of_rows(rows: Rows) -> pytest.MarkDecorator:
    """Parametrizes a test by the case, its changes and the message."""
    flat = [(name, *row) for name, some in rows.items() for row in some]
    ids = [f"{name}-{'-'.join(change)}" for name, change, _ in flat]
    return pytest.mark.parametrize(("name", "change", "message"), flat, ids=ids)


_BELOW_STRIDE = (
    {"cross_embed_kernel_sizes": [[1, 4], [2, 4], [2, 4], [2, 4]]},
    r"cross_embed_kernel_sizes\[0\] is \[1, 4\] with stride 2",
)
_WINDOW = (
    {"local_window_size": 3},
    r"local_window_size\[2\] is 3, which does not divide the height 4",
)
_NO_OUTPUT = {"channels": 0, "surface_channels": 0, "output_only_channels": 0}


def _norm(value: Any) -> Section:
    return {"architecture.decoder_use_norm": value}


# By case: changes of the section, and the error.
WRONG: Rows = {
    "crossformer mirror": [
        _BELOW_STRIDE,
        (
            {"cross_embed_kernel_sizes": [[4, 5], [2, 4], [2, 4], [2, 4]]},
            r"make \[32, 31\] of 64 points",
        ),
        (
            {
                "interp": False,
                "cross_embed_strides": [4, 2, 2, 2],
                "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
                "depth": [0, 0, 0, 0],
            },
            "interp is false and the decoder makes 13 x 24 points of the 45 x 56",
        ),
        (
            {"cross_embed_kernel_sizes": [[], [2, 4], [2, 4], [2, 4]]},
            r"cross_embed_kernel_sizes.0: must have at least 1",
        ),
        (
            {"padding_conf": None, "pad_lat": 80, "pad_lon": 40},
            r"mode: mirror, pad_lat: \[80, 80\], pad_lon: \[40, 40\]",
        ),
        (
            {"attention_type": "scse"},
            "model.attention_type: must be one of .*'scse_standard'.* got 'scse'",
        ),
        ({"diffusion": True}, r"model.diffusion: .*not available"),
        (
            {"upsample_conv": True},
            r"upsample_conv: unknown key; the nearest known key is 'upsample_v_conv'",
        ),
    ],
    "camulator two frames": [
        ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
        _BELOW_STRIDE,
        ({"patch_height": 2}, "expected both 1 or both above 1"),
        _WINDOW,
        ({"frame": 2}, "frame: unknown key; the nearest known key is"),
    ],
    "crossformer_downscaling mirror": [
        ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
        ({"channels": 4}, r"model.channels: must be a section of keys, got 4"),
        ({"channels.diagnostic": ABSENT}, r"model.channels.diagnostic"),
        (
            {"channels.prognostic": 0, "channels.diagnostic": 0},
            r"3 input and 0 output .*channels.prognostic 0 \+ channels.diagnostic 0",
        ),
        _BELOW_STRIDE,
    ],
    "nextgen levels": [
        (
            {"col_attn_heads": 3},
            r"model.channels is 4, which model.col_attn_heads = 3 does not divide",
        ),
        ({"col_attn_stride": 33}, r"col_attn_stride is 33; expected at most 32"),
        ({"channels": 0}, r"0 channels on 3 levels; expected at least 1"),
        _WINDOW,
        ({"dim": [12, 16, 32, 64]}, r"which the 12 groups"),
        (
            {"cross_embed_kernel_sizes": [[2, 4], [2, 4]]},
            "cross_embed_kernel_sizes.2: missing",
        ),
        ({"num_nodes": 2}, "num_nodes: unknown key"),
    ],
    "ensemble frozen": [
        ({"frames": 2}, "model.frames is 2; expected 1"),
        ({"output_frames": 2}, "model.output_frames is 2; expected 1"),
        (
            {"patch_height": 2, "patch_width": 2}
            | {"image_height": 64, "image_width": 64},
            "patch_width are 2 and 2; expected 1",
        ),
        ({"dim": [8, 16, 16, 64]}, r"model.dim\[2\] is 16; expected 32, dim\[3\] / 2"),
        ({"noise_dim": 3}, "noise_dim: unknown key"),
    ],
    "diffusion noise": [
        ({"patch_height": 2, "patch_width": 2}, "patch_width are 2 and 2; expected 1")
    ],
    "diffusion v": [
        ({"frames": 2}, "frames"),
        (
            {"diffusion.image_size": [32, 30]},
            r"expected the grid of the model, \[30, 30\]",
        ),
        ({"diffusion.sampling_timesteps": -1}, "expected 1 to timesteps = 50"),
        ({"diffusion.sampling_timesteps": 51}, "expected 1 to timesteps = 50"),
        (
            {"diffusion.beta_schedule": "linear", "diffusion.timesteps": 20},
            "expected at least 21",
        ),
        ({"diffusion.condition": False}, "condition is false; expected true"),
        ({"diffusion.self_condition": True}, "no channels for it"),
        ({"diffusion.immiscible": True}, "immiscible"),
        (
            {"diffusion.ddim_sampling_eta": 2},
            "ddim_sampling_eta: must be at most 1.0, got 2",
        ),
        ({"diffusion.schedule_fn_kwargs": {"s": 1}}, "has 's'; the sigmoid schedule"),
        ({"diffusion.steps": 3}, "steps: unknown key"),
        ({"diffusion": ABSENT}, "model.diffusion"),
    ],
    "fuxi shifted": [
        (
            {"frames": 4},
            "frames is 4 and model.frame_patch_size 2; .* frame_patch_size from 3 to 4",
        ),
        ({"frames": 1}, "frame_patch_size from 1 to 1"),
        ({"num_heads": 3}, r"num_heads has 3, .* dim 8; would fit: .*2"),
        ({"num_groups": [2, 3]}, "num_groups has 3, which does not divide dim 8"),
        ({"window_size": 1}, "window_size is 1; .* at least 2"),
        ({"window_size": [3, 4]}, r"window_size is \[3, 4\]; .*equal"),
        ({"depth": -1}, "depth: must be at least 0, got -1"),
        (
            {"patch_width": 4, "padding_conf": None},
            r"patch_width is 4: 36 points make 9 patches, whose half is 5, .*"
            r"round\(36 / 4 / 2\) = 4 and fails; pad to 40 points",
        ),
        ({"patch_height": 32}, "patch_height is 32, more than the 28 points"),
        (
            {"padding_conf": {"mode": "mirror", "pad_lat": [22, 22], "pad_lon": 2}},
            "padding_conf.pad_lat",
        ),
        (
            {"padding_conf": None, "pad_lat": 80, "pad_lon": 80},
            r"mode: mirror, pad_lat: \[80, 80\], pad_lon: \[80, 80\]",
        ),
        (
            {"interp": False, "padding_conf": None}
            | {"image_height": 24, "image_width": 38},
            "interp is false and patches make 24 x 40 points of the 24 x 38",
        ),
        (_NO_OUTPUT, "0 output channels"),
        ({"drop_path": 1.0}, "drop_path: must be less than 1.0, got 1.0"),
        ({"use_noise": True}, "use_noise: .*not available.*scheduler"),
        ({"freeze": True}, "freeze: .*nothing is left to train"),
        ({"windowsize": 7}, "nearest known key is 'window_size'"),
    ],
    "swin oblong": [
        ({"patch_size": 5}, "patch_size is 5, which does not divide the 24"),
        ({"window_size": [5, 8]}, r"the 12 rows of patches are not whole windows of 5"),
        (
            {"img_window_ratio": 5},
            r"the 24 columns of patches are not whole windows of 9 \(48 points // "
            "img_window_ratio 5",
        ),
        ({"img_window_ratio": 40}, "the windows have 0 rows: 24 points"),
        ({"num_heads": [3]}, "num_heads has 3, which does not divide embed_dim 8"),
        ({"depths": [2, 2]}, "depths has 2 entries and model.num_heads 1"),
        ({"frames": 4}, "frames is 4; expected 1 to 3"),
        (
            {"residual": True, "output_only_channels": 3},
            "residual adds the input to the output, but they have 7 and 8 channels",
        ),
        ({"drop_path_rate": -0.1}, "drop_path_rate: must be at least 0.0, got -0.1"),
        ({"mlp_ratio": 0}, "mlp_ratio is 0"),
        (
            {"padding_conf": {"mode": "earth", "pad_lat": 30, "pad_lon": 0}},
            "padding_conf.pad_lat",
        ),
        ({"depth": [2]}, "nearest known key is 'depths'"),
    ],
    "region wrf": [
        (
            {"param_outside.image_height": 12},
            "param_outside makes 12 x 12 patches of 12 x 24 points, param_interior 14",
        ),
        ({"param_outside.dim": 4}, "param_outside.dim is 4 and param_interior.dim 8"),
        (
            {"param_outside.frames": 4},
            r"frames is 4 and model.frame_patch_size 1; .*param_outside",
        ),
        ({"param_interior.frames": 1}, "frames is 1 and model.frame_patch_size 2"),
        (
            {"param_outside.channels": 0, "param_outside.surface_channels": 0},
            "0 channels around the region",
        ),
        ({"param_outside": ABSENT}, "param_outside"),
    ],
    "region dscale": [
        ({"num_heads": 3}, "num_heads has 3"),
        ({"attn_drop": 1.5}, "attn_drop: must be less than 1.0, got 1.5"),
        ({"input_channels": 3}, "input_channels"),
    ],
    "unet two frames": [
        (
            {"architecture.name": "unet++"},
            r"architecture.name: architecture 'unet\+\+' is not available; there are: ",
        ),
        (
            {"architecture.encoder_name": "vgg16"},
            "encoder 'vgg16' is not available; there are: resnet18",
        ),
        (
            _norm("LayerNorm"),
            "decoder_use_norm: 'layernorm' is not available: in CREDIT it normalizes",
        ),
        (
            _norm("rmsnorm"),
            "decoder_use_norm: must be one of 'batchnorm', 'instancenorm' or 'identity",
        ),
        (
            _norm({"type": "batchnorm", "affine": False}),
            "decoder_use_norm: affine is false: batchnorm without scales and biases",
        ),
        (
            {"architecture.encoder_depth": 4},
            r"decoder_channels has 5 entries; expected encoder_depth 4",
        ),
        (
            {"architecture.decoder_channels": [64, 32, 16, 16, 8]},
            "decoder_channels.4: must be at least 16, got 8",
        ),
        (
            {"architecture.activation": "softmax"},
            "activation: must be one of 'identity', 'sigmoid' or 'tanh', got .softmax.",
        ),
        ({"frames": 4}, r"model.frames is 4; expected 1 to 3"),
        (
            {"rk4_integration": True},
            "rk4_integration adds the output to the input, but there are 7 input and 6",
        ),
        ({"architecture": None}, "architecture"),
    ],
    "unet-diffusion padded": [
        ({"frames": 2}, "frames"),
        ({"image_height": 18}, "18 . 4 padding = 22; expected a multiple of 4"),
        ({"dim_mults": [1] * 5}, "24 . 4 padding = 28; expected a multiple of"),
        ({"dim": [7]}, r"dim\[0\] is 7; expected an even number"),
        ({"attn_heads": [1, 2]}, "attn_heads has 2 entries; expected one for"),
        ({"full_attn": [True]}, "full_attn has 1 entries"),
        ({"learned_sinusoidal_cond": True}, "process refuses it"),
        ({"dropout": 1.0}, "dropout: must be less than 1.0, got 1.0"),
        (_NO_OUTPUT, "0 output channels"),
        ({"gen1_post_conf": {"activate": False}}, "gen1_post_conf"),
        ({"dimension": 3}, "dimension: unknown key"),
    ],
    "graph attributes": [
        ({"history_len": 1}, "history_len is 1; expected 2"),
        ({"dim_head": 3}, "hidden_size is 8, which model.dim_head = 3 does not"),
        ({"dropout": 1.0}, "dropout: must be less than 1.0, got 1.0"),
        (
            {"n_variables": 0, "n_surface_variables": 0},
            "0 output channels; expected at least 1",
        ),
        ({"n_blocks": 10**9}, "n_blocks: must be at most 1000, got 1000000000"),
        ({"frames": 2}, "frames: unknown key"),
    ],
    "debugger frames": [(_NO_OUTPUT, "2 input and 0 output channels")],
}


@of_rows(WRONG)
def test_what_cannot_run_is_refused(block: Section, change: Section, message: str):
    with pytest.raises(ValueError, match=message):
        build(changed(block, change))


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
# By case: changes of the section, and the warning.
WARNED: Rows = {
    "crossformer mirror": [
        ({"pad_lat": 80, "pad_lon": 80}, "pad_lat .padding_conf is there and counts")
    ],
    "camulator three frames": [({}, "model.frames .3: the model takes the mean")],
    "nextgen levels": [
        ({"output_only_channels": 1}, "the first 1 of 1 have the input-only")
    ],
    "ensemble frozen": [
        ({"pretrained_weights": "x"}, "model.pretrained_weights .CREDIT"),
        ({"noise_scheduler": "x"}, "model.noise_scheduler .CREDIT"),
    ],
    "diffusion v": [
        ({"diffusion.auto_normalize": False}, "model.diffusion.auto_normalize .CREDIT")
    ],
    "fuxi shifted": [
        ({"output_frames": 1}, "model.output_frames "),
        ({"noise_factor": 1}, "model.noise_factor "),
        ({"frames": 3}, "does not see the others"),
        (
            {"use_spectral_norm": False, "train_qkv": True},
            "train_qkv .without spectral norm",
        ),
        ({"pad_lat": 80}, "pad_lat .padding_conf is there"),
    ],
    "swin oblong": [({"frames": 3}, "does not see the last")],
    "unet two frames": [
        (
            {"architecture": {"name": "unet", "encoder_weights": "imagenet"}},
            "pretrained weights are not downloaded",
        )
    ],
    "unet-diffusion padded": [
        ({"dim": [8, 3]}, "model.dim .only its first entry counts"),
        ({"full_attn": "None"}, "full_attn .got the string 'None', which"),
        (
            {"diffusion.sampling_timesteps": 0},
            "sampling_timesteps .with 0 a sample is the",
        ),
    ],
    "debugger frames": [
        ({"use_spectral_norm": True}, r"model.use_spectral_norm .unknown key")
    ],
}
WARNED_OF_KEYS: Rows = {
    name: [
        ({key: 1}, f"model.{key} .CREDIT's {CASES[name].block['type']} ignores")
        for key in keys
    ]
    for name, keys in IGNORED.items()
}


@of_rows({name: WARNED.get(name, []) + WARNED_OF_KEYS.get(name, []) for name in CASES})
def test_what_has_no_effect_is_named_in_a_warning(
    block: Section, change: Section, message: str
):
    with pytest.warns(UserWarning, match=message):
        parse_model(changed(block, change))


def test_what_asks_for_nothing_is_accepted() -> None:
    block = CASES["crossformer mirror"].block
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
