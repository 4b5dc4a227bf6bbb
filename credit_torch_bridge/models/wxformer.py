"""Key table of `wxformer` and `wxformer_base` (models/wxformer/crossformer.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from credit_torch_bridge.models.arrangement import (
    CHANNELS_OF_FIELD,
    CONV_2D,
    CONV_3D,
    HEADS_TO_CHANNELS,
    LINEAR,
    POINTWISE,
    QUERY_KEY_VALUE,
    Arrangement,
)
from credit_torch_bridge.models.key_table import Rule

_BLOCK = "layers.{s}.1.layers.{d}"
_OUR_BLOCK = "stages/{s}/blocks"


def weight_and_bias(torch: str, ours: str, arrangement: Arrangement) -> Iterator[Rule]:
    """A layer with a kernel and a bias."""
    yield Rule(f"{torch}.weight", f"{ours}/kernel", arrangement)
    yield Rule(f"{torch}.bias", f"{ours}/bias")


def scale_and_bias(torch: str, ours: str) -> Iterator[Rule]:
    """A torch.nn.LayerNorm or GroupNorm."""
    yield Rule(f"{torch}.weight", f"{ours}/scale")
    yield Rule(f"{torch}.bias", f"{ours}/bias")


def channel_norm(torch: str, ours: str) -> Iterator[Rule]:
    """CREDIT's own LayerNorm over channels: g and b, (1, channel, 1, 1)."""
    yield Rule(f"{torch}.g", f"{ours}/scale", CHANNELS_OF_FIELD)
    yield Rule(f"{torch}.b", f"{ours}/bias", CHANNELS_OF_FIELD)


def window_attention(torch: str, ours: str) -> Iterator[Rule]:
    """Attention and its position bias: four linear layers, three norms."""
    yield from channel_norm(f"{torch}.norm", f"{ours}/norm")
    yield Rule(f"{torch}.to_qkv.weight", f"{ours}/to_qkv/kernel", QUERY_KEY_VALUE)
    yield from weight_and_bias(f"{torch}.to_out", f"{ours}/to_out", HEADS_TO_CHANNELS)
    bias, our_bias = f"{torch}.dpb.layers", f"{ours}/position_bias"
    for i in range(4):
        yield from weight_and_bias(f"{bias}.{3 * i}", f"{our_bias}/linear_{i}", LINEAR)
    for i in range(3):
        yield from scale_and_bias(f"{bias}.{3 * i + 1}", f"{our_bias}/norm_{i}")


def feed_forward(torch: str, ours: str) -> Iterator[Rule]:
    """Norm, then two convolutions of one grid point."""
    yield from channel_norm(f"{torch}.layers.0", f"{ours}/norm")
    yield from weight_and_bias(f"{torch}.layers.1", f"{ours}/up", POINTWISE)
    yield from weight_and_bias(f"{torch}.layers.4", f"{ours}/down", POINTWISE)


def transformer_blocks(torch: str, ours: str) -> Iterator[Rule]:
    """The blocks of a stage; PyTorch numbers them by `{d}`, ours are stacked."""
    yield from window_attention(f"{torch}.0", f"{ours}/short_attention")
    yield from feed_forward(f"{torch}.1", f"{ours}/short_feed_forward")
    yield from window_attention(f"{torch}.2", f"{ours}/long_attention")
    yield from feed_forward(f"{torch}.3", f"{ours}/long_feed_forward")


def up_block(torch: str, ours: str) -> Iterator[Rule]:
    """A pixel-shuffle block; its residual stack is (conv, GroupNorm, SiLU) twice."""
    yield from weight_and_bias(f"{torch}.conv", f"{ours}/conv", CONV_2D)
    yield from weight_and_bias(f"{torch}.sharp", f"{ours}/sharp", CONV_2D)
    for i in range(2):
        convolution, norm = f"{torch}.b.{3 * i}", f"{torch}.b.{3 * i + 1}"
        yield from weight_and_bias(convolution, f"{ours}/residual_conv_{i}", CONV_2D)
        yield from scale_and_bias(norm, f"{ours}/residual_norm_{i}")


def block_names(config: Any) -> list[str]:
    """CREDIT's modules whose outputs are those of our blocks, in order."""
    names = [] if config.patch == (1, 1) else ["cube_embedding"]
    for stage, depth in enumerate(config.depth):
        names += [f"layers.{stage}.0"] + ([f"layers.{stage}.1"] if depth else [])
    return [*names, *(f"up_block{number}" for number in (1, 2, 3, 4))]


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias(
        "layers.{s}.0.convs.{i}.1", "stages/{s}/embed/convs/{i}", CONV_2D
    )
    yield from transformer_blocks(_BLOCK, _OUR_BLOCK)
    # CREDIT builds the patch embedding even where a patch is one grid point.
    yield from weight_and_bias("cube_embedding.proj", "cube_embedding/proj", CONV_3D)
    yield from scale_and_bias("cube_embedding.norm", "cube_embedding/norm")
    for i in range(3):
        yield from up_block(f"up_block{i + 1}", f"up_blocks/{i}")
    yield from weight_and_bias("up_block4.0", "head/conv", CONV_2D)
    yield from weight_and_bias("up_block4.2", "head/out", CONV_2D)


TABLE = tuple(_rules())
