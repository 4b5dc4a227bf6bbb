"""CREDIT's names of `nextgen_wxformer` (models/wxformer/wxformer_next.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from credit_jax.models.crossformer.nextgen import NextGenWXFormerConfig
from credit_jax.models.crossformer.wxformer_keys import BRANCH
from credit_jax.state_dict.arrangement import CONV_2D, LINEAR, Arrangement
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    encoder_decoder_blocks,
    pixel_shuffle_decoder,
    scale_and_bias,
    transformer_layers,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import TorchModel, Upgrade

# The projection of torch.nn.MultiheadAttention.
IN_PROJECTION = Arrangement("(n h d) i -> i n h d")


def _rules() -> Iterator[Rule]:
    yield Rule("level_embedding.bias", "levels/bias")
    yield from _level_attention("col_attn", "levels/attention")
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}.1", "stages/{s}/embed/convs/{i}", CONV_2D
    )
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


def _blocks(config: NextGenWXFormerConfig) -> list[str]:
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

TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()),
    block_names=_blocks,
    renames=(BRANCH,),
    upgrade=_CONVOLUTIONS,
    signature=re.compile(
        r"(^|\.)(level_embedding|col_attn|spectral_bottleneck|to_q)\."
    ),
)
