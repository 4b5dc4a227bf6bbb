"""The `model:` block of CREDIT's `wxformer`: keys, defaults, geometry, divisibility."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, PositiveInt

from credit_jax.config.base import StrictModel
from credit_jax.config.messages import divisors
from credit_jax.ops.conv import conv_out_size
from credit_jax.parallel.domain.padding import check_padding


def _each_stage(value: Any) -> Any:
    """One number stands for all four stages."""
    return (value,) * 4 if isinstance(value, int) else value


Stages = Annotated[
    tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt],
    BeforeValidator(_each_stage),
]
Depths = Annotated[tuple[int, int, int, int], BeforeValidator(_each_stage)]
Kernels = tuple[tuple[PositiveInt, ...], ...]


class PaddingConfig(StrictModel):
    """`padding_conf`: rows beyond the poles and columns around the globe.

    Attributes:
        activate: whether to pad.
        mode: "earth" (across the pole) or "mirror" (reflected).
        pad_lat: rows to add (north, south).
        pad_lon: columns to add (west, east).
    """

    activate: bool = True
    mode: Literal["earth", "mirror"] = "earth"
    pad_lat: tuple[int, int] = (40, 40)
    pad_lon: tuple[int, int] = (40, 40)


@dataclass(frozen=True)
class StageGeometry:
    """Sizes of one encoder stage.

    Attributes:
        height, width: points of the stage's fields.
        channels: of the fields.
        heads: of each attention.
        local_window, global_window: tokens along each side of a window.
    """

    height: int
    width: int
    channels: int
    heads: int
    local_window: int
    global_window: int


@dataclass(frozen=True)
class Geometry:
    """Sizes on the way through the model, (lat, lon) each."""

    padded: tuple[int, int]
    patched: tuple[int, int]
    stages: tuple[StageGeometry, ...]
    decoded: tuple[int, int]
    output: tuple[int, int]


class WXFormerConfig(StrictModel):
    """Constructor keys of CREDIT's CrossFormer, with its defaults.

    Attributes:
        image_height, image_width: grid of input and output.
        patch_height, patch_width: points of a patch; 1 x 1 is no patch embedding.
        frames, output_frames: time steps in and out.
        channels: number of 3D variables; levels: of each.
        surface_channels, input_only_channels, output_only_channels: 2D variables that
            go in and out, only in, only out.
        dim, depth: channels and number of transformer blocks of each stage.
        dim_head: channels of an attention head.
        global_window_size, local_window_size: of long and short attention, for each
            stage.
        cross_embed_kernel_sizes, cross_embed_strides: of each stage's embedding.
        attn_dropout, ff_dropout: rates in training.
        use_spectral_norm: on every 2D convolution and linear layer.
        interp: interpolate the output to the grid.
        padding_conf: see `PaddingConfig`.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "attention_type": "CREDIT accepts it and builds no attention from it",
        "upsample_with_ps": "the decoder is always the pixel-shuffle one",
        "frame_patch_size": "CREDIT's wxformer ignores it",
        "upsample_v_conv": "CREDIT's wxformer ignores it",
        "decoder_attention_type": "CREDIT's wxformer ignores it",
        "pad_lat": "CREDIT's wxformer ignores it; use padding_conf",
        "pad_lon": "CREDIT's wxformer ignores it; use padding_conf",
        "post_conf": "CREDIT drops it in training; use postblocks",
    }

    type: Literal["wxformer", "wxformer_base"] = "wxformer"
    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    patch_height: PositiveInt = 1
    patch_width: PositiveInt = 1
    frames: PositiveInt = 2
    output_frames: PositiveInt = 1
    channels: int = 4
    surface_channels: int = 7
    input_only_channels: int = 3
    output_only_channels: int = 0
    levels: int = 15
    dim: Stages = (64, 128, 256, 512)
    depth: Depths = (2, 2, 8, 2)
    dim_head: PositiveInt = 32
    global_window_size: Stages = (5, 5, 2, 1)
    local_window_size: Stages = (10, 10, 10, 10)
    cross_embed_kernel_sizes: Kernels = ((4, 8, 16, 32), (2, 4), (2, 4), (2, 4))
    cross_embed_strides: Stages = (4, 2, 2, 2)
    attn_dropout: float = 0.0
    ff_dropout: float = 0.0
    use_spectral_norm: bool = True
    interp: bool = True
    padding_conf: PaddingConfig | None = None

    @property
    def patch(self) -> tuple[int, int]:
        return self.patch_height, self.patch_width

    @property
    def padding(self) -> PaddingConfig | None:
        """The padding, None where it is absent or not active."""
        conf = self.padding_conf
        return conf if conf is not None and conf.activate else None

    @property
    def input_channels(self) -> int:
        """Channels of one input frame."""
        variables = self.channels * self.levels + self.surface_channels
        return variables + self.input_only_channels

    @property
    def output_channels(self) -> int:
        """Channels of one output frame."""
        variables = self.channels * self.levels + self.surface_channels
        return variables + self.output_only_channels

    def geometry(self) -> Geometry:
        """Sizes on the way through the model; meaningful if `problems()` is empty."""
        pad = self.padding
        lat, lon = (pad.pad_lat, pad.pad_lon) if pad else ((0, 0), (0, 0))
        padded = self.image_height + sum(lat), self.image_width + sum(lon)
        height, width = patched = (
            padded[0] // self.patch_height,
            padded[1] // self.patch_width,
        )
        stages = []
        for index, stride in enumerate(self.cross_embed_strides):
            height, width = height // stride, width // stride
            stages.append(
                StageGeometry(
                    height,
                    width,
                    self.dim[index],
                    self.dim[index] // self.dim_head,
                    self.local_window_size[index],
                    self.global_window_size[index],
                )
            )
        decoded = stages[0].height * 2, stages[0].width * 2
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.image_height, self.image_width
        return Geometry(
            padded, patched, tuple(stages), decoded, grid if self.interp else cropped
        )

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """All that keeps the model from running, with arithmetic and what would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, some shards may idle.
        """
        found = self._shape_problems()
        if found:
            return found
        return [
            *self._padding_problems(),
            *self._stage_problems(),
            *self._decoder_problems(),
            *self._tensor_problems(tensor),
        ]

    def _shape_problems(self) -> list[str]:
        found = []
        if len(self.cross_embed_kernel_sizes) != 4:
            found.append(
                "model.cross_embed_kernel_sizes has "
                f"{len(self.cross_embed_kernel_sizes)} entries; expected 4, one list "
                "of kernel sizes a stage"
            )
        if min(self.depth) < 0:
            found.append(
                f"model.depth is {list(self.depth)}; expected no negative entry"
            )
        if self.input_channels < 1 or self.output_channels < 1:
            found.append(
                f"model has {self.input_channels} input and {self.output_channels} "
                "output channels; expected at least 1 of each: channels * levels + "
                "surface_channels + input_only_channels or output_only_channels"
            )
        if (self.patch_height == 1) != (self.patch_width == 1):
            found.append(
                f"model.patch_height is {self.patch_height} and model.patch_width is "
                f"{self.patch_width}; expected both 1 or both above 1 (CREDIT embeds "
                "patches only then)"
            )
        if self.patch != (1, 1) and self.frames > 1:
            found.append(
                f"model.frames is {self.frames} with patches of {self.patch_height} x "
                f"{self.patch_width}; expected frames: 1 (CREDIT's patch embedding "
                "cannot take more), or patch_height: 1 and patch_width: 1"
            )
        for index, channels in enumerate(self.dim):
            if channels < self.dim_head:
                found.append(
                    f"model.dim[{index}] is {channels}, smaller than dim_head "
                    f"{self.dim_head}; set dim_head to at most {min(self.dim)}"
                )
        for name in ("attn_dropout", "ff_dropout"):
            rate = getattr(self, name)
            if not 0.0 <= rate < 1.0:
                found.append(f"model.{name} is {rate}; expected 0 <= {name} < 1")
        return found

    def _padding_problems(self) -> list[str]:
        pad = self.padding
        if pad is None:
            return []
        try:
            check_padding(
                pad.mode, pad.pad_lat, pad.pad_lon, self.image_height, self.image_width
            )
        except ValueError as error:
            return [f"model.{error}"]
        return []

    def _stage_problems(self) -> list[str]:
        found = []
        geometry = self.geometry()
        above = geometry.patched
        for index, stage in enumerate(geometry.stages):
            found += self._embed_problems(index, above)
            above = stage.height, stage.width
            for name, size in (("height", stage.height), ("width", stage.width)):
                for kind in ("local", "global"):
                    window = getattr(stage, f"{kind}_window")
                    if self.depth[index] and (size % window or not size):
                        found.append(
                            f"model.{kind}_window_size[{index}] is {window}, which "
                            f"does not divide the {name} {size} of stage {index} "
                            f"({self._trail(name, index)}); would fit: "
                            f"{divisors(size)}"
                        )
        return found

    def _embed_problems(self, index: int, above: tuple[int, int]) -> list[str]:
        """Kernels that do not fit into the padded field of the stage above."""
        found = []
        stride = self.cross_embed_strides[index]
        for kernel in self.cross_embed_kernel_sizes[index]:
            total = kernel - stride
            for size in above:
                if conv_out_size(size, kernel, stride, (0, total)) < 1:
                    found.append(
                        f"model.cross_embed_kernel_sizes[{index}] has {kernel}, but "
                        f"stage {index} gets {above[0]} x {above[1]} points and its "
                        f"stride is {stride}: no output point is left; use a larger "
                        "grid or padding"
                    )
        count = len(self.cross_embed_kernel_sizes[index])
        if not count or self.dim[index] < 2**count // 2:
            found.append(
                f"model.cross_embed_kernel_sizes[{index}] has {count} kernels for "
                f"{self.dim[index]} channels; expected 1 to "
                f"{self.dim[index].bit_length()}"
            )
        return found

    def _decoder_problems(self) -> list[str]:
        found = []
        stages = self.geometry().stages
        for index in (1, 2, 3):
            small, large = stages[index], stages[index - 1]
            if (small.height * 2, small.width * 2) != (large.height, large.width):
                found.append(
                    f"stage {index} has {small.height} x {small.width} points; the "
                    f"decoder doubles it to {small.height * 2} x {small.width * 2}, "
                    f"but stage {index - 1}, which it is joined with, has "
                    f"{large.height} x {large.width}; "
                    f"model.cross_embed_strides[{index}] must be 2 and height and "
                    "width of the stage above even: change the padding"
                )
        for index in range(3):
            channels = self.dim[3] // 2 ** (index + 1)
            if not channels or channels % self.dim[0]:
                found.append(
                    f"decoder block {index + 1} has dim[3] / {2 ** (index + 1)} = "
                    f"{channels} channels, which the {self.dim[0]} groups "
                    "(model.dim[0]) of its GroupNorm do not divide; choose dim[3] a "
                    f"multiple of {8 * self.dim[0]}"
                )
        pad, decoded = self.padding, self.geometry().decoded
        if pad and (decoded[0] <= sum(pad.pad_lat) or decoded[1] <= sum(pad.pad_lon)):
            found.append(
                f"the decoder gives {decoded[0]} x {decoded[1]} points and the padding "
                f"to remove is {sum(pad.pad_lat)} x {sum(pad.pad_lon)}: nothing is "
                "left; use less padding or smaller strides"
            )
        return found

    def _tensor_problems(self, tensor: int) -> list[str]:
        found = []
        for index, channels in enumerate(self.dim):
            heads, hidden = channels // self.dim_head, 4 * channels
            if self.depth[index] and heads % tensor:
                found.append(
                    f"stage {index} has {channels} // {self.dim_head} = {heads} heads, "
                    f"which trainer.parallelism.tensor = {tensor} does not divide; "
                    f"would fit: {divisors(heads)}, or a smaller model.dim_head"
                )
            elif self.depth[index] and hidden % tensor:
                found.append(
                    f"stage {index} has 4 * {channels} = {hidden} feed-forward units, "
                    f"which trainer.parallelism.tensor = {tensor} does not divide"
                )
        return found

    def _trail(self, name: str, index: int) -> str:
        """How a stage comes to its size: "45 + 19 padding, / 2 / 2"."""
        size = self.image_height if name == "height" else self.image_width
        pad = self.padding
        added = sum(pad.pad_lat if name == "height" else pad.pad_lon) if pad else 0
        patch = self.patch_height if name == "height" else self.patch_width
        steps = [f"{size} + {added} padding" if added else str(size)]
        steps += [f"/ patch {patch}"] if patch > 1 else []
        steps += [f"/ {stride}" for stride in self.cross_embed_strides[: index + 1]]
        return " ".join(steps)
