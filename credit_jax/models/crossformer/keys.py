"""CREDIT's names of the parameters of the CrossFormer family.

CREDIT's modules are models/crossformer.py, camulator.py, and in models/wxformer
crossformer.py, crossformer_ensemble.py and wxformer_next.py. Up to the decoder the keys
of all but `nextgen_wxformer` are alike, except that in `wxformer` the convolutions of
the embeddings are in a Sequential with their padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from credit_jax.models.crossformer.config import EncoderDecoderConfig, StagesConfig
from credit_jax.state_dict.key_table import Rule, key_table
from credit_jax.state_dict.torch_model import KeyRename

EMBEDDINGS = key_table("layers.{s}.0.convs.{i} stages/{s}/embed/convs/{i} conv")
PADDED_EMBEDDINGS = key_table(
    "layers.{s}.0.convs.{i}.1 stages/{s}/embed/convs/{i} conv"
)


def transformer_layers(*, linear: bool = False) -> Iterator[Rule]:
    """The stacked layers of the stages; the projections are 1 x 1 convolutions.

    Or, with `linear`, linear layers, separate ones for q, k and v.
    """
    layer, from_heads = "pointwise", "pointwise_from_heads"
    qkv = "to_qkv.weight  to_qkv/kernel  (n h d) i 1 1 -> i n h d"
    if linear:
        layer, from_heads = "linear", "from_heads"
        qkv = "\n".join(f"to_{n}.weight to_qkv/{n} (h d) i -> i h d" for n in "qkv")
    attention = f"""
        norm          norm                    channel_norm
        {qkv}
        to_out        to_out                  {from_heads}
        dpb.layers.0  position_bias/linear_0  linear
        dpb.layers.1  position_bias/norm_0    norm
        dpb.layers.3  position_bias/linear_1  linear
        dpb.layers.4  position_bias/norm_1    norm
        dpb.layers.6  position_bias/linear_2  linear
        dpb.layers.7  position_bias/norm_2    norm
        dpb.layers.9  position_bias/linear_3  linear
    """
    feed_forward = f"""
        layers.0  norm  channel_norm
        layers.1  up    {layer}
        layers.4  down  {layer}
    """
    torch, path = "layers.{s}.1.layers.{d}", "stages/{s}/blocks"
    for index, kind in ((0, "short"), (2, "long")):
        yield from key_table(attention, f"{torch}.{index}", f"{path}/{kind}_attention")
        yield from key_table(
            feed_forward, f"{torch}.{index + 1}", f"{path}/{kind}_feed_forward"
        )


# What follows the embeddings. PyTorch registers the patch embedding after the stages.
STAGES = (
    *transformer_layers(),
    *key_table("cube_embedding cube_embedding patch_embedding"),
)

# A transposed convolution, or a convolution after an interpolation; then attention of
# at most one `attention_type`: eca, spatial, or mixed, which has both; coordinate;
# scse_standard and scse_optimized. So do our paths differ, and one table has them all.
_UP_BLOCK = """
    conv       up       transposed_conv
    conv       up/conv  conv
    .          .        residual
    attention.conv.weight                    attention/taps           1 1 k -> k
    attention.conv.weight                    attention/kernel         o i h w -> h w i o
    attention.channel_attention.conv.weight  attention/channels/taps  1 1 k -> k
    attention.spatial_attention.conv.weight  attention/points/kernel  o i h w -> h w i o
    attention.conv1                          attention/squeeze        pointwise
    attention.bn1                            attention/norm           norm
    attention.conv_h                         attention/lat            pointwise
    attention.conv_w                         attention/lon            pointwise
    attention.cse.1.weight                   attention/squeeze        o i 1 1 -> i o
    attention.cse.3.weight                   attention/expand         o i 1 1 -> i o
    attention.sse.0.weight                   attention/points         o i 1 1 -> i o
    attention.sse.0.weight                   attention/scale          o i 1 1 -> i o
    attention.sse.1.weight                   attention/scaled_points  o i 1 1 -> i o
"""
DECODER = (
    *key_table(_UP_BLOCK, "up_block1", "up_blocks/0"),
    *key_table(_UP_BLOCK, "up_block2", "up_blocks/1"),
    *key_table(_UP_BLOCK, "up_block3", "up_blocks/2"),
    *key_table("up_block4 head/up transposed_conv \n up_block4.1 head/up/conv conv"),
)

_SHUFFLE_BLOCK = "conv conv conv \n sharp sharp conv \n . . residual"
PIXEL_SHUFFLE_DECODER = (
    *key_table(_SHUFFLE_BLOCK, "up_block1", "up_blocks/0"),
    *key_table(_SHUFFLE_BLOCK, "up_block2", "up_blocks/1"),
    *key_table(_SHUFFLE_BLOCK, "up_block3", "up_blocks/2"),
    *key_table("up_block4.0 head/conv conv \n up_block4.2 head/out conv"),
)


def block_names(config: StagesConfig) -> list[str]:
    """Blocks of encoders and decoders: see `TorchModel.block_names`."""
    names = [] if config.patch == (1, 1) else ["cube_embedding"]
    for stage, depth in enumerate(config.depth):
        names += [f"layers.{stage}.0"] + ([f"layers.{stage}.1"] if depth else [])
    return [*names, *(f"up_block{number}" for number in (1, 2, 3, 4))]


def unused_patch_embedding(config: EncoderDecoderConfig) -> list[str]:
    """The patch embedding if a patch is one point: CREDIT creates but ignores it."""
    return ["cube_embedding"] if config.patch == (1, 1) else []


# In older versions a branch of the cross-scale embedding is a convolution, not a
# Sequential.
BRANCH = KeyRename(re.compile(r"(.*\bconvs\.\d+)\.(?!\d+\.)([^.]+)"), r"\1.1.\2")
