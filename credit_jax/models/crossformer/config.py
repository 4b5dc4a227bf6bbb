"""Config keys and CREDIT's names of parameters of the CrossFormer family.

The family has four encoder stages, a decoder that doubles the grid four times, and
padding.

CREDIT's modules are models/crossformer.py, camulator.py, and in models/wxformer
crossformer.py, crossformer_ensemble.py and wxformer_next.py. Up to the decoder the keys
of all but `nextgen_wxformer` are alike, except that in `wxformer` the convolutions of
the embeddings are in a Sequential with their padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from credit_jax.models.common import config as common
from credit_jax.models.common.resampling import FrameFold, mean_problems, unseen_frames
from credit_jax.ops.space_to_depth import conv_out_size
from credit_jax.parallel.domain.conv import scale_padding
from credit_jax.state_dict.key_table import Rule, key_table
from credit_jax.state_dict.torch_model import KeyRename

PerStage = Annotated[
    tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], common.repeated(4)
]
Depths = Annotated[
    tuple[common.Depth, common.Depth, common.Depth, common.Depth], common.repeated(4)
]
Kernels = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class StagesConfig(common.ModelConfig):
    """Keys of four encoder stages, with CREDIT's defaults.

    Attributes:
        image_height, image_width: grid of input and output.
        frames: time steps of the input.
        dim, depth: numbers of channels and of transformer blocks of each stage.
        dim_head: number of channels of an attention head.
        global_window_size, local_window_size: tokens along each side of the windows of
            long and of short attention, for each stage.
        cross_embed_kernel_sizes, cross_embed_strides: kernel sizes and strides of the
            embedding of each stage.
        use_spectral_norm: whether 2D convolutions and linear layers have spectral norm.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        "dim": [8, 16, 32, 64],
        "depth": [1, 0, 0, 0],
        "dim_head": 4,
        "cross_embed_kernel_sizes": [[4, 8], [2], [2], [2]],
        "global_window_size": [2, 2, 2, 1],
        "local_window_size": 2,
    }

    trades_heads: ClassVar[bool] = True
    # Whether embeddings pad symmetrically (`parallel.domain.conv.scale_padding`).
    symmetric_embedding: ClassVar[bool] = False

    image_height: common.Side = 640
    image_width: common.Side = 1280
    frames: PositiveInt = 2
    dim: PerStage = (64, 128, 256, 512)
    depth: Depths = (2, 2, 8, 2)
    dim_head: PositiveInt = 32
    global_window_size: PerStage = (5, 5, 2, 1)
    local_window_size: PerStage = (10, 10, 10, 10)
    cross_embed_kernel_sizes: tuple[Kernels, Kernels, Kernels, Kernels] = (
        (4, 8, 16, 32),
        (2, 4),
        (2, 4),
        (2, 4),
    )
    cross_embed_strides: PerStage = (4, 2, 2, 2)
    use_spectral_norm: bool = True

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch; (1, 1) for no patch embedding."""
        return getattr(self, "patch_height", 1), getattr(self, "patch_width", 1)

    def scale_sizes(self, index: int, size: int) -> list[int]:
        """Returns the output size of each kernel of the embedding of a stage."""
        stride = self.cross_embed_strides[index]
        sizes = []
        for kernel in sorted(self.cross_embed_kernel_sizes[index]):
            pad = scale_padding(kernel, stride, symmetric=self.symmetric_embedding)
            sizes.append(conv_out_size(size, kernel, stride, pad))
        return sizes

    def geometry(self) -> common.Geometry:
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
        (lat, lon), padded = self.pads, self.padded
        patched = padded[0] // self.patch[0], padded[1] // self.patch[1]
        stages: list[common.StageGeometry] = []
        sides = list(patched)
        for index in range(4):
            sides = [self.scale_sizes(index, side)[-1] for side in sides]
            stages.append(
                common.StageGeometry(
                    *(sides[0], sides[1]),
                    self.dim[index],
                    self.depth[index],
                    self.dim[index] // self.dim_head,
                    self.dim_head,
                    self.local_window_size[index],
                    self.global_window_size[index],
                )
            )
        decoded = stages[0].height * 2, stages[0].width * 2
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.image_height, self.image_width
        output = grid if getattr(self, "interp", True) else cropped
        return common.Geometry(grid, padded, patched, tuple(stages), decoded, output)

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`; any size of a domain shard is right."""
        yield from super().problems()
        for index, channels in enumerate(self.dim):
            if channels < self.dim_head:
                yield (
                    f"model.dim[{index}] is {channels}, smaller than dim_head "
                    f"{self.dim_head}; set dim_head to at most {min(self.dim)}"
                )
        geometry = self.geometry()
        above = geometry.patched
        for index, stage in enumerate(geometry.stages):
            yield from dict.fromkeys(self._embed_problems(index, above))
            above = stage.height, stage.width
            for name, size in zip(("height", "width"), above, strict=True):
                trail = f"the {name} of stage {index} ({self._trail(name, index)})"
                for kind in ("local", "global") if stage.depth else ():
                    key, window = f"{kind}_window", getattr(stage, f"{kind}_window")
                    yield from common.divisor_problems(
                        f"{key}_size[{index}]", window, size, trail
                    )
        for index in (1, 2, 3):
            channels = self.dim[3] // 2**index
            if not channels or channels % self.dim[0]:
                yield (
                    f"decoder block {index} has dim[3] / {2**index} = {channels} "
                    f"channels, which the {self.dim[0]} groups (model.dim[0]) of its "
                    "GroupNorm do not divide; choose dim[3] a multiple of "
                    f"{8 * self.dim[0]}"
                )

    def _embed_problems(self, index: int, above: tuple[int, int]) -> Iterator[str]:
        """Yields errors of kernels that do not fit the field of the previous stage."""
        kernels = sorted(self.cross_embed_kernel_sizes[index])
        stride = self.cross_embed_strides[index]
        origin = f"model.cross_embed_kernel_sizes[{index}]"
        if self.symmetric_embedding and kernels[0] < stride:
            yield (
                f"{origin} is {kernels} with stride {stride}; expected kernels of at "
                "least the stride"
            )
        for points in above:
            sizes = self.scale_sizes(index, points)
            for kernel, size in zip(kernels, sizes, strict=True):
                if size < 1:
                    yield (
                        f"{origin} has {kernel}, of which {above[0]} x {above[1]} "
                        f"points leave none in stage {index}; use a larger grid or pad"
                    )
            if len(set(sizes)) > 1:
                yield (
                    f"{origin} is {kernels}, which make {sizes} of {points} points "
                    f"with stride {stride}; expected equal sizes: choose odd or even"
                )
        if self.dim[index] < 2 ** len(kernels) // 2:
            yield (
                f"{origin} has {len(kernels)} kernels for {self.dim[index]} channels; "
                f"expected 1 to {self.dim[index].bit_length()}"
            )

    def _trail(self, name: str, index: int) -> str:
        """Returns the arithmetic of the size of a stage: "45 + 19 padding / 2 / 2"."""
        size = self.image_height if name == "height" else self.image_width
        dim = 0 if name == "height" else 1
        added = sum(self.pads[dim])
        patch = self.patch[dim]
        steps = [f"{size} + {added} padding" if added else str(size)]
        steps += [f"/ patch {patch}"] if patch > 1 else []
        steps += [f"/ {stride}" for stride in self.cross_embed_strides[: index + 1]]
        return " ".join(steps)


class EncoderDecoderConfig(common.PaddedConfig, StagesConfig):
    """Keys of an encoder and a decoder, with padding and cropping.

    A subclass defines the channels of input and output, and `output_frames`.

    Attributes:
        patch_height, patch_width: rows and columns of a patch; 1 x 1 for no patch
            embedding.
        attn_dropout, ff_dropout: dropout rates of attention weights and hidden units.
        interp: whether to interpolate the output to the grid.
    """

    # How frames become channels of the first stage, without patch embedding.
    frame_fold: ClassVar[FrameFold] = "channel"

    patch_height: PositiveInt = 1
    patch_width: PositiveInt = 1
    attn_dropout: common.Rate = 0.0
    ff_dropout: common.Rate = 0.0
    interp: bool = True

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.frame_fold == "mean" and self.patch == (1, 1):
            notes |= unseen_frames(self.frames)
        return notes

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`: patches, frames, and what the decoder joins."""
        previous = [*super().problems()]
        yield from previous
        if (self.patch_height == 1) != (self.patch_width == 1):
            yield (
                f"model.patch_height is {self.patch_height}, model.patch_width "
                f"{self.patch_width}; expected both 1, or both above 1 as in CREDIT"
            )
        mean = self.frame_fold == "mean"
        if self.patch != (1, 1) and self.frames > 1 and not mean:
            yield (
                f"model.frames is {self.frames} with patches of {self.patch_height} x "
                f"{self.patch_width}; expected frames: 1, as in CREDIT, or no patches"
            )
        if self.patch == (1, 1) and mean:
            yield from mean_problems(self.frames)
        geometry = self.geometry()
        joined = True
        for index in (1, 2, 3):
            small, large = geometry.stages[index], geometry.stages[index - 1]
            if (small.height * 2, small.width * 2) != (large.height, large.width):
                joined = False
                yield (
                    f"stage {index} has {small.height} x {small.width} points, which "
                    f"the decoder doubles and joins with {large.height} x "
                    f"{large.width} of stage {index - 1}; expected an even stage above "
                    f"and model.cross_embed_strides[{index}] 2: change the padding"
                )
        pad, decoded = [sum(ends) for ends in self.pads], geometry.decoded
        if any(pad) and (decoded[0] <= pad[0] or decoded[1] <= pad[1]):
            yield (
                f"the decoder gives {decoded[0]} x {decoded[1]} points, of which the "
                f"padding is {pad[0]} x {pad[1]}; use less padding or smaller strides"
            )
        elif joined and not previous and geometry.output != geometry.grid:
            output, grid = geometry.output, geometry.grid
            yield (
                f"model.interp is false and the decoder makes {output[0]} x "
                f"{output[1]} points of the {grid[0]} x {grid[1]} of the grid; set "
                "interp: true, or model.cross_embed_strides[0]: 2 without patches"
            )


# Reasons why models ignore keys of CREDIT.
NO_FLAT_PADS = dict.fromkeys(("pad_lat", "pad_lon"), "; use padding_conf")
ONE_FRAME = {"output_frames": ": the output has one frame"}
PIXEL_SHUFFLE = {"upsample_with_ps": ": the decoder is always the pixel-shuffle one"}
_TRANSPOSED = ": the decoder has transposed convolutions"
TRANSPOSED = dict.fromkeys(("upsample_v_conv", "upsample_with_ps"), _TRANSPOSED)


class EncoderConfig(common.VariableKeys, EncoderDecoderConfig):
    """Keys of `wxformer` and `crossformer`.

    Attributes:
        output_frames: number of time steps of the output.
    """

    output_frames: PositiveInt = 1


def without_patches(config: EncoderDecoderConfig) -> Iterator[str]:
    """Yields an error if a model with which CREDIT fails then has patches."""
    if config.patch != (1, 1):
        yield (
            f"model.patch_height and model.patch_width are {config.patch[0]} and "
            f"{config.patch[1]}; expected 1: CREDIT's {config.type} fails with patches"
        )


EMBEDDINGS = key_table("layers.{s}.0.convs.{i} stages/{s}/embed/convs/{i} conv")
PADDED_EMBEDDINGS = key_table(
    "layers.{s}.0.convs.{i}.1 stages/{s}/embed/convs/{i} conv"
)


def transformer_layers(*, linear: bool = False) -> Iterator[Rule]:
    """The stacked layers of the stages; the projections are 1 x 1 convolutions."""
    # Or, with `linear`, linear layers, separate ones for q, k and v.
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
