"""CREDIT's names of the parameters of `swin` (models/swin.py)."""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.swin.fuxi_keys import FROM_HEADS, QUERY_KEY_VALUE
from credit_jax.models.swin.swin import SwinConfig
from credit_jax.state_dict.arrangement import CONV_2D, LINEAR, Arrangement
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import scale_and_bias, weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel

POSITION = Arrangement("1 e h w -> h w e")
BIAS_OF_HEADS = Arrangement("(n h d) -> n h d")


def _rules() -> Iterator[Rule]:
    yield Rule("pos_embed", "embedding/position", POSITION)
    yield from weight_and_bias("patch_embed.proj", "embedding/proj", CONV_2D)
    yield from scale_and_bias("patch_embed.norm", "embedding/norm")
    yield from _block("stages.{s}.blocks.{d}", "stages/{s}")
    yield Rule("head.weight", "head/kernel", LINEAR)


def _block(torch: str, ours: str) -> Iterator[Rule]:
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
    yield from scale_and_bias(f"{torch}.norm1", f"{ours}/norm_0")
    for name in ("fc1", "fc2"):
        feed_forward = f"{torch}.mlp.{name}", f"{ours}/feed_forward/{name}"
        yield from weight_and_bias(*feed_forward, LINEAR)
    yield from scale_and_bias(f"{torch}.norm2", f"{ours}/norm_1")


def _block_names(config: SwinConfig) -> list[str]:
    stages = [f"stages.{index}" for index in range(len(config.depths))]
    # With `full_pos_embed` our output includes the position, unlike that of CREDIT's
    # patch_embed. "pos_embed" is no module, so it is not compared.
    embedding = "pos_embed" if config.full_pos_embed else "patch_embed"
    return [embedding, *stages, "head"]


TORCH_MODEL = TorchModel(key_table=tuple(_rules()), block_names=_block_names)
