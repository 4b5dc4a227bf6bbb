"""Key-table rules of layers that models of CREDIT share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from credit_jax.state_dict.arrangement import (
    CHANNELS_OF_FIELD,
    CONV_2D,
    CONV_3D,
    HEADS,
    HEADS_TO_CHANNELS,
    HEADS_TO_CHANNELS_LINEAR,
    LINEAR,
    POINTWISE,
    QUERY_KEY_VALUE,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule


def weight_and_bias(torch: str, ours: str, arrangement: Arrangement) -> Iterator[Rule]:
    """A layer with a kernel and a bias."""
    yield Rule(f"{torch}.weight", f"{ours}/kernel", arrangement)
    yield Rule(f"{torch}.bias", f"{ours}/bias")


def scale_and_bias(torch: str, ours: str) -> Iterator[Rule]:
    """A `torch.nn.LayerNorm`, GroupNorm or BatchNorm."""
    yield Rule(f"{torch}.weight", f"{ours}/scale")
    yield Rule(f"{torch}.bias", f"{ours}/bias")


def channel_norm(torch: str, ours: str) -> Iterator[Rule]:
    """CREDIT's LayerNorm over channels: g and b of shape (1, channel, 1, 1)."""
    yield Rule(f"{torch}.g", f"{ours}/scale", CHANNELS_OF_FIELD)
    yield Rule(f"{torch}.b", f"{ours}/bias", CHANNELS_OF_FIELD)


def patch_embedding(torch: str, ours: str) -> Iterator[Rule]:
    """CREDIT's CubeEmbedding: a 3-D convolution and a LayerNorm."""
    yield from weight_and_bias(f"{torch}.proj", f"{ours}/proj", CONV_3D)
    yield from scale_and_bias(f"{torch}.norm", f"{ours}/norm")


def window_attention(torch: str, ours: str, *, linear: bool = False) -> Iterator[Rule]:
    """Attention and its dynamic position bias: four linear layers, three norms.

    Args:
        torch, ours: the module, and our path.
        linear: projections are linear layers, separate for q, k and v, instead of 1 x 1
            convolutions.
    """
    yield from channel_norm(f"{torch}.norm", f"{ours}/norm")
    if linear:
        for name in "qkv":
            path = f"{ours}/to_qkv/{name}"
            yield Rule(f"{torch}.to_{name}.weight", path, HEADS)
    else:
        yield Rule(f"{torch}.to_qkv.weight", f"{ours}/to_qkv/kernel", QUERY_KEY_VALUE)
    out = HEADS_TO_CHANNELS_LINEAR if linear else HEADS_TO_CHANNELS
    yield from weight_and_bias(f"{torch}.to_out", f"{ours}/to_out", out)
    bias, our_bias = f"{torch}.dpb.layers", f"{ours}/position_bias"
    for i in range(4):
        yield from weight_and_bias(f"{bias}.{3 * i}", f"{our_bias}/linear_{i}", LINEAR)
    for i in range(3):
        yield from scale_and_bias(f"{bias}.{3 * i + 1}", f"{our_bias}/norm_{i}")


def feed_forward(torch: str, ours: str, *, linear: bool = False) -> Iterator[Rule]:
    """A norm and two pointwise convolutions, or linear layers."""
    layer = LINEAR if linear else POINTWISE
    yield from channel_norm(f"{torch}.layers.0", f"{ours}/norm")
    yield from weight_and_bias(f"{torch}.layers.1", f"{ours}/up", layer)
    yield from weight_and_bias(f"{torch}.layers.4", f"{ours}/down", layer)


def transformer_layers(
    torch: str, ours: str, *, linear: bool = False
) -> Iterator[Rule]:
    """The transformer layers of a stage, numbered `{d}` in PyTorch, stacked in ours.

    Args:
        torch, ours: the module, and our path.
        linear: see `window_attention`.
    """
    for index, kind in ((0, "short"), (2, "long")):
        attention, mlp = f"{ours}/{kind}_attention", f"{ours}/{kind}_feed_forward"
        yield from window_attention(f"{torch}.{index}", attention, linear=linear)
        yield from feed_forward(f"{torch}.{index + 1}", mlp, linear=linear)


def residual_convolutions(torch: str, ours: str) -> Iterator[Rule]:
    """The residual stack of an up block: (conv, GroupNorm, SiLU) twice."""
    for i in range(2):
        convolution, norm = f"{torch}.b.{3 * i}", f"{torch}.b.{3 * i + 1}"
        yield from weight_and_bias(convolution, f"{ours}/residual_conv_{i}", CONV_2D)
        yield from scale_and_bias(norm, f"{ours}/residual_norm_{i}")


def pixel_shuffle_decoder() -> Iterator[Rule]:
    """Three pixel-shuffle blocks and a head, up_block1 to up_block4."""
    for i in range(3):
        torch, ours = f"up_block{i + 1}", f"up_blocks/{i}"
        yield from weight_and_bias(f"{torch}.conv", f"{ours}/conv", CONV_2D)
        yield from weight_and_bias(f"{torch}.sharp", f"{ours}/sharp", CONV_2D)
        yield from residual_convolutions(torch, ours)
    yield from weight_and_bias("up_block4.0", "head/conv", CONV_2D)
    yield from weight_and_bias("up_block4.2", "head/out", CONV_2D)


@runtime_checkable
class CrossFormerSizes(Protocol):
    """Sizes of a crossformer that its blocks depend on."""

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch."""
        ...

    @property
    def depth(self) -> Sequence[int]:
        """Number of transformer layers of each stage."""
        ...


def encoder_decoder_blocks(config: CrossFormerSizes) -> list[str]:
    """Blocks of crossformer encoders and decoders: see `TorchModel.block_names`."""
    names = [] if config.patch == (1, 1) else ["cube_embedding"]
    for stage, depth in enumerate(config.depth):
        names += [f"layers.{stage}.0"] + ([f"layers.{stage}.1"] if depth else [])
    return [*names, *(f"up_block{number}" for number in (1, 2, 3, 4))]


def unused_patch_embedding(config: CrossFormerSizes) -> list[str]:
    """The patch embedding if a patch is one point: CREDIT creates but ignores it."""
    return ["cube_embedding"] if config.patch == (1, 1) else []
