"""CREDIT's names of the parameters of `fuxi`, `swin`, `wrf` and `dscale`.

CREDIT's modules are models/fuxi.py, swin.py, swin_wrf.py and dscale_wrf.py; the blocks
are timm's Swin V2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from credit_jax.models.swin.fuxi import FuxiConfig
from credit_jax.models.swin.swin import SwinConfig
from credit_jax.models.swin.u_transformer_model import UTransformerConfig
from credit_jax.state_dict.arrangement import (
    CONV_2D,
    CONV_TRANSPOSE_2D,
    LINEAR,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    patch_embedding,
    residual_convolutions,
    scale_and_bias,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import TorchModel

LOGIT_SCALE = Arrangement("h 1 1 -> h")
HEADS = Arrangement("(h d) -> h d")
QUERY_KEY_VALUE = Arrangement("(n h d) i -> i n h d")
FROM_HEADS = Arrangement("o (h d) -> h d o")
POSITION = Arrangement("1 e h w -> h w e")
BIAS_OF_HEADS = Arrangement("(n h d) -> n h d")
# wrf embeds the region and its surroundings apart.
WRF_EMBEDDINGS = ("cube_embedding_inside", "cube_embedding_outside")


def _feed_forward_and_norms(torch: str, ours: str) -> Iterator[Rule]:
    """What follows the attention in a block of Swin V2."""
    yield from scale_and_bias(f"{torch}.norm1", f"{ours}/norm_0")
    for name in ("fc1", "fc2"):
        feed_forward = f"{torch}.mlp.{name}", f"{ours}/feed_forward/{name}"
        yield from weight_and_bias(*feed_forward, LINEAR)
    yield from scale_and_bias(f"{torch}.norm2", f"{ours}/norm_1")


def _u_transformer() -> Iterator[Rule]:
    """The U-Transformer of fuxi, wrf and dscale, and their head."""
    name = "u_transformer"
    yield from weight_and_bias(f"{name}.down.conv", f"{name}/down/conv", CONV_2D)
    yield from residual_convolutions(f"{name}.down", f"{name}/down")
    yield from _u_transformer_block(f"{name}.layer.blocks.{{d}}", f"{name}/blocks")
    yield from weight_and_bias(f"{name}.up.conv", f"{name}/up/up", CONV_TRANSPOSE_2D)
    yield from residual_convolutions(f"{name}.up", f"{name}/up")
    yield from weight_and_bias("fc", "head/linear", LINEAR)


def _u_transformer_block(torch: str, ours: str) -> Iterator[Rule]:
    attention, our_attention = f"{torch}.attn", f"{ours}/attention"
    yield Rule(f"{attention}.logit_scale", f"{our_attention}/logit_scale", LOGIT_SCALE)
    yield Rule(f"{attention}.q_bias", f"{our_attention}/qkv/q_bias", HEADS)
    yield Rule(f"{attention}.v_bias", f"{our_attention}/qkv/v_bias", HEADS)
    bias = f"{our_attention}/position_bias"
    yield from weight_and_bias(f"{attention}.cpb_mlp.0", f"{bias}/hidden", LINEAR)
    yield Rule(f"{attention}.cpb_mlp.2.weight", f"{bias}/out", LINEAR)
    qkv = f"{our_attention}/qkv/kernel"
    yield Rule(f"{attention}.qkv.weight", qkv, QUERY_KEY_VALUE)
    proj = f"{attention}.proj", f"{our_attention}/proj"
    yield from weight_and_bias(*proj, FROM_HEADS)
    yield from _feed_forward_and_norms(torch, ours)


def _u_transformer_rules(
    embeddings: Sequence[str], *, modulated: bool
) -> Iterator[Rule]:
    for name in embeddings:
        yield from patch_embedding(name, name)
    yield from _u_transformer()
    if modulated:
        yield from weight_and_bias("film", "film", LINEAR)


def _u_transformer_blocks(config: UTransformerConfig) -> list[str]:
    """Blocks of a U-Transformer: see `TorchModel.block_names`."""
    layer = ["u_transformer.layer"] if config.depth else []
    return ["u_transformer.down", *layer, "u_transformer.up", "fc"]


def _fuxi_blocks(config: FuxiConfig) -> list[str]:
    return ["cube_embedding", *_u_transformer_blocks(config)]


# The output of "film" is the modulated field in credit_jax, but the modulating vector
# in CREDIT. The changed name is no module, so it is not compared.
_FILM = "film, applied"


def _wrf_blocks(config: UTransformerConfig) -> list[str]:
    return [*WRF_EMBEDDINGS, _FILM, *_u_transformer_blocks(config)]


def _dscale_blocks(config: UTransformerConfig) -> list[str]:
    return ["cube_embedding", _FILM, *_u_transformer_blocks(config)]


def _swin_rules() -> Iterator[Rule]:
    yield Rule("pos_embed", "embedding/position", POSITION)
    yield from weight_and_bias("patch_embed.proj", "embedding/proj", CONV_2D)
    yield from scale_and_bias("patch_embed.norm", "embedding/norm")
    yield from _swin_block("stages.{s}.blocks.{d}", "stages/{s}")
    yield Rule("head.weight", "head/kernel", LINEAR)


def _swin_block(torch: str, ours: str) -> Iterator[Rule]:
    attention, our_attention = f"{torch}.attn", f"{ours}/attention"
    yield Rule(f"{attention}.logit_scale", f"{our_attention}/logit_scale")
    qkv = f"{our_attention}/qkv"
    yield Rule(f"{attention}.qkv.weight", f"{qkv}/kernel", QUERY_KEY_VALUE)
    yield Rule(f"{attention}.qkv.bias", f"{qkv}/bias", BIAS_OF_HEADS)
    proj = f"{attention}.proj", f"{our_attention}/proj"
    yield from weight_and_bias(*proj, FROM_HEADS)
    bias = f"{our_attention}/position_bias"
    hidden = f"{attention}.meta_mlp.fc1", f"{bias}/hidden"
    yield from weight_and_bias(*hidden, LINEAR)
    yield Rule(f"{attention}.meta_mlp.fc2.weight", f"{bias}/out", LINEAR)
    yield Rule(f"{attention}.meta_mlp.fc2.bias", f"{bias}/bias")
    yield from _feed_forward_and_norms(torch, ours)


def _swin_blocks(config: SwinConfig) -> list[str]:
    stages = [f"stages.{index}" for index in range(len(config.depths))]
    # With `full_pos_embed` our output includes the position, unlike that of CREDIT's
    # patch_embed. "pos_embed" is no module, so it is not compared.
    embedding = "pos_embed" if config.full_pos_embed else "patch_embed"
    return [embedding, *stages, "head"]


FUXI = TorchModel(
    key_table=tuple(_u_transformer_rules(["cube_embedding"], modulated=False)),
    block_names=_fuxi_blocks,
)
WRF = TorchModel(
    key_table=tuple(_u_transformer_rules(WRF_EMBEDDINGS, modulated=True)),
    block_names=_wrf_blocks,
)
DSCALE = TorchModel(
    key_table=tuple(_u_transformer_rules(["cube_embedding"], modulated=True)),
    block_names=_dscale_blocks,
)
SWIN = TorchModel(key_table=tuple(_swin_rules()), block_names=_swin_blocks)
