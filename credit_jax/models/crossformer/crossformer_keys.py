"""CREDIT's names of the parameters of `crossformer` (models/crossformer.py).

The keys of the encoder are WXFormer's except for the convolutions of its embeddings,
which are not in a Sequential with their padding. Those of the decoder depend on
`upsample_v_conv` and `attention_type`; so do our paths, and one table covers all
variants. `crossformer_downscaling` has the keys of the variant with transposed
convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.state_dict.arrangement import (
    CONV_2D,
    CONV_TRANSPOSE_2D,
    POINTWISE,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    encoder_decoder_blocks,
    patch_embedding,
    residual_convolutions,
    scale_and_bias,
    transformer_layers,
    unused_patch_embedding,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import TorchModel

# A 1-D convolution over channels, with one input and one output channel.
CHANNEL_TAPS = Arrangement("1 1 k -> k")


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}", "stages/{s}/embed/convs/{i}", CONV_2D
    )
    yield from transformer_layers("layers.{s}.1.layers.{d}", "stages/{s}/blocks")
    yield from patch_embedding("cube_embedding", "cube_embedding")
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


TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()),
    block_names=encoder_decoder_blocks,
    idle_modules=unused_patch_embedding,
)
