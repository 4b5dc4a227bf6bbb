"""Key table of `crossformer` (models/crossformer.py), the released WXFormer weights.

The encoder has WXFormer's keys but for the convolutions of its embeddings, which stand
in no sequence with their padding. The decoder's depend on `upsample_v_conv` and
`attention_type`: one table holds them all, since our paths differ, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_torch_bridge.models.arrangement import (
    CONV_2D,
    CONV_3D,
    POINTWISE,
    Arrangement,
)
from credit_torch_bridge.models.key_table import Rule
from credit_torch_bridge.models.wxformer import (
    scale_and_bias,
    transformer_blocks,
    weight_and_bias,
)

# PyTorch keeps the input channels of a transposed convolution in front; spectral norm
# takes the output channels as rows all the same.
CONV_TRANSPOSE_2D = Arrangement("i o h w -> h w i o", torch_out=1)
# A convolution over channels: one channel in and out, the taps.
CHANNEL_TAPS = Arrangement("1 1 k -> k")


def up_block(torch: str, ours: str) -> Iterator[Rule]:
    """What doubles the grid, (conv, GroupNorm, SiLU) twice, attention."""
    yield from doubling(f"{torch}.conv", f"{torch}.conv", f"{ours}/up")
    for i in range(2):
        convolution, norm = f"{torch}.b.{3 * i}", f"{torch}.b.{3 * i + 1}"
        yield from weight_and_bias(convolution, f"{ours}/residual_conv_{i}", CONV_2D)
        yield from scale_and_bias(norm, f"{ours}/residual_norm_{i}")
    yield from attention(f"{torch}.attention", f"{ours}/attention")


def doubling(transposed: str, plain: str, ours: str) -> Iterator[Rule]:
    """A transposed convolution, or the convolution after an interpolation."""
    yield from weight_and_bias(transposed, ours, CONV_TRANSPOSE_2D)
    yield from weight_and_bias(plain, f"{ours}/conv", CONV_2D)


def attention(torch: str, ours: str) -> Iterator[Rule]:
    """Every kind of attention of the decoder; a model has one of them or none."""
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


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}", "stages/{s}/embed/convs/{i}", CONV_2D
    )
    yield from transformer_blocks("layers.{s}.1.layers.{d}", "stages/{s}/blocks")
    # CREDIT builds the patch embedding even where a patch is one grid point.
    yield from weight_and_bias("cube_embedding.proj", "cube_embedding/proj", CONV_3D)
    yield from scale_and_bias("cube_embedding.norm", "cube_embedding/norm")
    for i in range(3):
        yield from up_block(f"up_block{i + 1}", f"up_blocks/{i}")
    yield from doubling("up_block4", "up_block4.1", "head/up")


TABLE = tuple(_rules())
