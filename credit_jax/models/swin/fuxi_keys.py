"""CREDIT's names of the parameters of `fuxi` (models/fuxi.py, timm's Swin V2)."""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.swin.fuxi import FuxiConfig
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


def u_transformer(torch: str, ours: str) -> Iterator[Rule]:
    """The U-Transformer of fuxi, wrf and dscale."""
    yield from weight_and_bias(f"{torch}.down.conv", f"{ours}/down/conv", CONV_2D)
    yield from residual_convolutions(f"{torch}.down", f"{ours}/down")
    yield from _block(f"{torch}.layer.blocks.{{d}}", f"{ours}/blocks")
    up = f"{torch}.up.conv", f"{ours}/up/up"
    yield from weight_and_bias(*up, CONV_TRANSPOSE_2D)
    yield from residual_convolutions(f"{torch}.up", f"{ours}/up")


def _block(torch: str, ours: str) -> Iterator[Rule]:
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
    yield from scale_and_bias(f"{torch}.norm1", f"{ours}/norm_0")
    for name in ("fc1", "fc2"):
        feed_forward = f"{torch}.mlp.{name}", f"{ours}/feed_forward/{name}"
        yield from weight_and_bias(*feed_forward, LINEAR)
    yield from scale_and_bias(f"{torch}.norm2", f"{ours}/norm_1")


def _rules() -> Iterator[Rule]:
    yield from patch_embedding("cube_embedding", "cube_embedding")
    yield from u_transformer("u_transformer", "u_transformer")
    yield from weight_and_bias("fc", "head/linear", LINEAR)


def u_transformer_blocks(config: UTransformerConfig) -> list[str]:
    """Blocks of a U-Transformer: see `TorchModel.block_names`."""
    layer = ["u_transformer.layer"] if config.depth else []
    return ["u_transformer.down", *layer, "u_transformer.up", "fc"]


def _block_names(config: FuxiConfig) -> list[str]:
    return ["cube_embedding", *u_transformer_blocks(config)]


TORCH_MODEL = TorchModel(key_table=tuple(_rules()), block_names=_block_names)
