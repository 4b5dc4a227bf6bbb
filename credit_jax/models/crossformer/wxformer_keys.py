"""CREDIT's names of the parameters of `wxformer` (models/wxformer/crossformer.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from credit_jax.state_dict.arrangement import CONV_2D
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    encoder_decoder_blocks,
    patch_embedding,
    pixel_shuffle_decoder,
    transformer_layers,
    unused_patch_embedding,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import RemovedLayer, Rename, TorchModel


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}.1", "stages/{s}/embed/convs/{i}", CONV_2D
    )
    yield from transformer_layers("layers.{s}.1.layers.{d}", "stages/{s}/blocks")
    yield from patch_embedding("cube_embedding", "cube_embedding")
    yield from pixel_shuffle_decoder()


# In older versions a branch of the cross-scale embedding is a convolution, not a
# Sequential.
BRANCH = Rename(re.compile(r"(.*\bconvs\.\d+)\.(?!\d+\.)([^.]+)"), r"\1.1.\2")
_TRANSPOSED_DECODER = RemovedLayer(
    re.compile(r"up_block4\.weight(_orig)?"),
    "the decoder is made of transposed convolutions, which CREDIT removed from "
    "wxformer and does not load either: none of its up_block1 to up_block4 has a "
    "counterpart in today's decoder. If the model is a CREDIT crossformer, which has "
    "this decoder, write model.type: crossformer; otherwise train it again",
)

TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()),
    block_names=encoder_decoder_blocks,
    idle_modules=unused_patch_embedding,
    renames=(BRANCH,),
    removed=(_TRANSPOSED_DECODER,),
)
