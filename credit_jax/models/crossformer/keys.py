"""CREDIT's names of the parameters of the CrossFormer family, a table for each model.

CREDIT's modules are models/crossformer.py, camulator.py, and in models/wxformer
crossformer.py, crossformer_ensemble.py and wxformer_next.py. Up to the decoder the keys
of all but `nextgen_wxformer` are alike, except that in `wxformer` the convolutions of
the embeddings are in a Sequential with their padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from credit_jax.models.crossformer.diffusion import DiffusionCrossFormerConfig
from credit_jax.models.crossformer.nextgen import NextGenWXFormerConfig
from credit_jax.models.diffusion.process_keys import below_process, process_buffers
from credit_jax.state_dict.arrangement import (
    CHANNELS_OF_FIELD,
    CONV_2D,
    CONV_TRANSPOSE_2D,
    LINEAR,
    POINTWISE,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    encoder_decoder_blocks,
    patch_embedding,
    pixel_shuffle_decoder,
    residual_convolutions,
    scale_and_bias,
    transformer_layers,
    unused_patch_embedding,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import (
    KeyRename,
    RemovedLayer,
    TorchModel,
    Upgrade,
)

# A 1-D convolution over channels, with one input and one output channel.
CHANNEL_TAPS = Arrangement("1 1 k -> k")
# The projection of torch.nn.MultiheadAttention.
IN_PROJECTION = Arrangement("(n h d) i -> i n h d")


def _embeddings(branch: str) -> Iterator[Rule]:
    yield from weight_and_bias(branch, "stages/{s}/embed/convs/{i}", CONV_2D)


def _encoder(branch: str) -> Iterator[Rule]:
    """The stages, and the patch embedding, which PyTorch registers after them."""
    yield from _embeddings(branch)
    yield from transformer_layers("layers.{s}.1.layers.{d}", "stages/{s}/blocks")
    yield from patch_embedding("cube_embedding", "cube_embedding")


# A branch of the cross-scale embedding; in a Sequential with its padding.
_BRANCH, _PADDED_BRANCH = "layers.{s}.0.convs.{i}", "layers.{s}.0.convs.{i}.1"


def _decoder() -> Iterator[Rule]:
    """The decoder of `crossformer`.

    It depends on `upsample_v_conv` and `attention_type`; so do our paths, and one table
    covers all variants.
    """
    for i in range(3):
        yield from _up_block(f"up_block{i + 1}", f"up_blocks/{i}")
    yield from _upsampling("up_block4", "up_block4.1", "head/up")


def _up_block(torch: str, ours: str) -> Iterator[Rule]:
    """Upsampling by two, (conv, GroupNorm, SiLU) twice, attention."""
    yield from _upsampling(f"{torch}.conv", f"{torch}.conv", f"{ours}/up")
    yield from residual_convolutions(torch, ours)
    yield from _attention(f"{torch}.attention", f"{ours}/attention")


def _upsampling(transposed: str, plain: str, ours: str) -> Iterator[Rule]:
    """A transposed convolution, or a convolution after an interpolation."""
    yield from weight_and_bias(transposed, ours, CONV_TRANSPOSE_2D)
    yield from weight_and_bias(plain, f"{ours}/conv", CONV_2D)


def _attention(torch: str, ours: str) -> Iterator[Rule]:
    """Every `attention_type` of the decoder; a model has at most one of them."""
    # eca, spatial, and mixed, which has both
    yield Rule(f"{torch}.conv.weight", f"{ours}/taps", CHANNEL_TAPS)
    yield Rule(f"{torch}.conv.weight", f"{ours}/kernel", CONV_2D)
    channels, points = f"{torch}.channel_attention", f"{torch}.spatial_attention"
    yield Rule(f"{channels}.conv.weight", f"{ours}/channels/taps", CHANNEL_TAPS)
    yield Rule(f"{points}.conv.weight", f"{ours}/points/kernel", CONV_2D)
    # coordinate
    yield from weight_and_bias(f"{torch}.conv1", f"{ours}/squeeze", POINTWISE)
    yield from scale_and_bias(f"{torch}.bn1", f"{ours}/norm")
    yield from weight_and_bias(f"{torch}.conv_h", f"{ours}/lat", POINTWISE)
    yield from weight_and_bias(f"{torch}.conv_w", f"{ours}/lon", POINTWISE)
    # scse_standard and scse_optimized
    yield Rule(f"{torch}.cse.1.weight", f"{ours}/squeeze", POINTWISE)
    yield Rule(f"{torch}.cse.3.weight", f"{ours}/expand", POINTWISE)
    yield Rule(f"{torch}.sse.0.weight", f"{ours}/points", POINTWISE)
    yield Rule(f"{torch}.sse.0.weight", f"{ours}/scale", POINTWISE)
    yield Rule(f"{torch}.sse.1.weight", f"{ours}/scaled_points", POINTWISE)


# `crossformer_downscaling` has the keys of the variant with transposed convolutions.
CROSSFORMER = TorchModel(
    key_table=(*_encoder(_BRANCH), *_decoder()),
    block_names=encoder_decoder_blocks,
    idle_modules=unused_patch_embedding,
)
CAMULATOR = replace(
    CROSSFORMER, key_table=(*_encoder(_BRANCH), *pixel_shuffle_decoder())
)

# In older versions a branch of the cross-scale embedding is a convolution, not a
# Sequential.
BRANCH = KeyRename(re.compile(r"(.*\bconvs\.\d+)\.(?!\d+\.)([^.]+)"), r"\1.1.\2")
_TRANSPOSED_DECODER = RemovedLayer(
    re.compile(r"up_block4\.weight(_orig)?"),
    "the decoder is made of transposed convolutions, which CREDIT removed from "
    "wxformer and does not load either: none of its up_block1 to up_block4 has a "
    "counterpart in today's decoder. If the model is a CREDIT crossformer, which has "
    "this decoder, write model.type: crossformer; otherwise train it again",
)

WXFORMER = replace(
    CROSSFORMER,
    key_table=(*_encoder(_PADDED_BRANCH), *pixel_shuffle_decoder()),
    renames=(BRANCH,),
    removed=(_TRANSPOSED_DECODER,),
)


def _noise() -> Iterator[Rule]:
    """The layers that add noise."""
    yield from _injection("encoder_noise_layers.{i}", "encoder_noise/{i}")
    for i in range(3):
        yield from _injection(f"noise_inject{i + 1}", f"decoder_noise/{i}")


def _injection(torch: str, ours: str) -> Iterator[Rule]:
    yield Rule(f"{torch}.modulation", f"{ours}/modulation", CHANNELS_OF_FIELD)
    yield Rule(f"{torch}.noise_factor", f"{ours}/factor")
    yield from weight_and_bias(f"{torch}.noise_transform", ours, LINEAR)


ENSEMBLE = replace(
    CROSSFORMER,
    key_table=(*CROSSFORMER.key_table, *_noise()),
    lists_frozen=False,
)


def _time_embedding() -> Iterator[Rule]:
    for i, name in enumerate(("first", "second")):
        ours = f"time_embedding/{name}"
        yield from weight_and_bias(f"time_to_emb.{2 * i}", ours, LINEAR)
    ours = "time_embedding/stages/{s}"
    yield from weight_and_bias("time_emb_proj.{s}.1", ours, LINEAR)


def _diffusion_blocks(config: DiffusionCrossFormerConfig) -> list[str]:
    return [f"model.{name}" for name in encoder_decoder_blocks(config)]


def _diffusion_idle(config: DiffusionCrossFormerConfig) -> list[str]:
    return [f"model.{name}" for name in unused_patch_embedding(config)]


# As its trainer writes them: the buffers of the process, then the network's keys under
# "model.".
DIFFUSION = TorchModel(
    key_table=below_process((*_encoder(_BRANCH), *_time_embedding(), *_decoder())),
    block_names=_diffusion_blocks,
    idle_modules=_diffusion_idle,
    constants=process_buffers,
)


def _nextgen_rules() -> Iterator[Rule]:
    yield Rule("level_embedding.bias", "levels/bias")
    yield from _level_attention("col_attn", "levels/attention")
    yield from _embeddings(_PADDED_BRANCH)
    yield from transformer_layers(
        "layers.{s}.1.layers.{d}", "stages/{s}/blocks", linear=True
    )
    nodes = "spectral_bottleneck"
    yield Rule(f"{nodes}.agg_w", "nodes/gather", Arrangement("k (h w) -> k h w"))
    yield Rule(f"{nodes}.scatter_w", "nodes/scatter", Arrangement("(h w) k -> h w k"))
    yield from scale_and_bias(f"{nodes}.norm", "nodes/norm")
    yield from weight_and_bias(f"{nodes}.mlp.0", "nodes/up", LINEAR)
    yield from weight_and_bias(f"{nodes}.mlp.2", "nodes/down", LINEAR)
    yield from pixel_shuffle_decoder()
    yield from _level_attention("dec_col_attn", "output_levels")


def _level_attention(torch: str, ours: str) -> Iterator[Rule]:
    yield from scale_and_bias(f"{torch}.norm", f"{ours}/norm")
    yield Rule(f"{torch}.attn.in_proj_weight", f"{ours}/to_qkv", IN_PROJECTION)
    yield Rule(f"{torch}.attn.out_proj.weight", f"{ours}/to_out", LINEAR)
    yield Rule(f"{torch}.proj.weight", f"{ours}/proj", LINEAR)


def _nextgen_blocks(config: NextGenWXFormerConfig) -> list[str]:
    names = encoder_decoder_blocks(config)
    names.insert(names.index("up_block1"), "spectral_bottleneck")
    return [*names, *(["dec_col_attn"] if config.decoder_col_attn else [])]


# Projections of the older version: 1 x 1 convolutions, with q, k and v in one.
_FUSED = re.compile(r"(.*)\.to_qkv\.(weight|weight_orig|weight_u|weight_v)")
_CONVOLUTION = re.compile(r".*\.(to_out|layers\.1|layers\.4)\.weight(_orig)?")


def _is_older(key: str, array: Any) -> bool:
    """Whether an entry is a projection of the version with convolutions."""
    if _FUSED.fullmatch(key):
        return True
    shape = tuple(np.shape(array))
    return bool(_CONVOLUTION.fullmatch(key)) and shape[2:] == (1, 1)


def _split(key: str, array: Any) -> dict[str, Any]:
    """Splits q, k and v, with the same `weight_v`; 1 x 1 kernels become matrices."""
    match = _FUSED.fullmatch(key)
    if match is None:
        return {key: array.reshape(array.shape[:2])}
    stem, leaf = match.groups()
    if leaf == "weight_v":
        parts = [array] * 3
    else:
        third = array.shape[0] // 3
        whole = array.reshape(array.shape[:2]) if leaf != "weight_u" else array
        parts = [whole[i * third : (i + 1) * third] for i in range(3)]
    return {f"{stem}.to_{n}.{leaf}": p for n, p in zip("qkv", parts, strict=True)}


_CONVOLUTIONS = Upgrade(
    _is_older,
    _split,
    "the checkpoint is of the version with convolutions: q, k and v are thirds of one "
    "matrix, as CREDIT reads it. Under spectral norm the thirds of its u are no unit "
    "vectors, and evaluation divides by too small a sigma until training forwards have "
    "moved them",
)

NEXTGEN = TorchModel(
    key_table=tuple(_nextgen_rules()),
    block_names=_nextgen_blocks,
    renames=(BRANCH,),
    upgrade=_CONVOLUTIONS,
    signature=re.compile(
        r"(^|\.)(level_embedding|col_attn|spectral_bottleneck|to_q)\."
    ),
)
