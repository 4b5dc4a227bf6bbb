"""CREDIT's names of the parameters of `camulator` (models/camulator.py).

The encoder is that of `crossformer`, the decoder that of `wxformer`.
"""

from __future__ import annotations

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
from credit_jax.state_dict.torch_model import TorchModel


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}", "stages/{s}/embed/convs/{i}", CONV_2D
    )
    yield from transformer_layers("layers.{s}.1.layers.{d}", "stages/{s}/blocks")
    yield from patch_embedding("cube_embedding", "cube_embedding")
    yield from pixel_shuffle_decoder()


TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()),
    block_names=encoder_decoder_blocks,
    idle_modules=unused_patch_embedding,
)
