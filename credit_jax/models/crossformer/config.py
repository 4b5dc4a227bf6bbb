"""Config keys shared by the models of the CrossFormer family.

Four encoder stages, a decoder that doubles the grid four times, padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, PositiveInt

from credit_jax.models.common.config import ModelConfig
from credit_jax.models.common.gen1_post_conf import Gen1PostConf
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.padding import PaddingConfig, padding_problems, repeated
from credit_jax.models.crossformer import checks
from credit_jax.ops.conv import conv_out_size
from credit_jax.parallel.domain.conv import scale_padding


def _active_blocks(value: Any) -> Any:
    """The names of the blocks of a `post_conf` that is active; None if it is not."""
    if not isinstance(value, Mapping):
        return value
    if not value.get("activate"):
        return None
    blocks = value.items()
    return [k for k, v in blocks if isinstance(v, Mapping) and v.get("activate")]


Stages = Annotated[
    tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], repeated(4)
]
Depths = Annotated[tuple[int, int, int, int], repeated(4)]
Kernels = tuple[tuple[PositiveInt, ...], ...]
PostBlocks = Annotated[tuple[str, ...] | None, BeforeValidator(_active_blocks)]


class EncoderConfig(ModelConfig):
    """Keys shared by the models of the family, with CREDIT's defaults.

    Attributes:
        image_height, image_width: grid of input and output.
        patch_height, patch_width: points of a patch; 1 x 1 is no patch embedding.
        frames, output_frames: time steps in and out.
        channels: number of 3D variables; levels: of each.
        surface_channels, input_only_channels, output_only_channels: 2D variables of
            input and output, of the input only, of the output only.
        dim, depth: channels and number of transformer blocks of each stage.
        dim_head: channels of an attention head.
        global_window_size, local_window_size: of long and short attention, for each
            stage.
        cross_embed_kernel_sizes, cross_embed_strides: of each stage's embedding.
        attn_dropout, ff_dropout: rates in training.
        use_spectral_norm: on every 2D convolution and linear layer.
        interp: interpolate the output to the grid.
        padding_conf: see `PaddingConfig`.
        post_conf: names of its active blocks, which CREDIT's gen2 training drops.
        gen1_post_conf: corrections at the end of the forward pass, which gen1 trains
            with; not in CREDIT's gen2.
    """

    # Whether embeddings pad both ends alike (`parallel.domain.conv.scale_padding`).
    symmetric_embedding: ClassVar[bool] = False

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
    post_conf: PostBlocks = None
    gen1_post_conf: Gen1PostConf | None = None

    def without_effect(self) -> dict[str, str]:
        """An active `post_conf`; see `StrictModel.without_effect`."""
        if not self.post_conf:
            return {}
        why = (
            f"{', '.join(self.post_conf)}: CREDIT's gen2 training drops it, too; "
            "correct in postblocks.per_step, or with gen1_post_conf as gen1 does"
        )
        return {"post_conf": why}

    @property
    def files(self) -> Mapping[str, str]:
        """See `ModelConfig.files`."""
        if self.gen1_post_conf is None:
            return {}
        named = self.gen1_post_conf.files.items()
        return {f"gen1_post_conf.{key}": path for key, path in named}

    def check_files(self) -> None:
        """See `ModelConfig.check_files`."""
        if self.gen1_post_conf is not None and self.gen1_post_conf.activate:
            self.gen1_post_conf.check_grid((self.image_height, self.image_width))

    @property
    def patch(self) -> tuple[int, int]:
        return self.patch_height, self.patch_width

    @property
    def padding(self) -> PaddingConfig | None:
        """The active padding, or None."""
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

    def channel_sum(self, direction: str) -> str:
        """The arithmetic of `input_channels` or `output_channels`, for errors.

        Args:
            direction: "input" or "output".
        """
        only = f"{direction}_only_channels"
        return (
            f"channels {self.channels} x levels {self.levels} + surface_channels "
            f"{self.surface_channels} + {only} {getattr(self, only)}"
        )

    @property
    def pads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows (north, south) and columns (west, east) to add; zeros for none."""
        pad = self.padding
        return (pad.pad_lat, pad.pad_lon) if pad else ((0, 0), (0, 0))

    def scale_sizes(self, index: int, size: int) -> list[int]:
        """Output size of each kernel of a stage's embedding for `size` input points."""
        stride = self.cross_embed_strides[index]
        sizes = []
        for kernel in sorted(self.cross_embed_kernel_sizes[index]):
            pad = scale_padding(kernel, stride, symmetric=self.symmetric_embedding)
            sizes.append(conv_out_size(size, kernel, stride, pad))
        return sizes

    def geometry(self) -> Geometry:
        """Grid sizes along the layers; valid only if `problems()` is empty."""
        lat, lon = self.pads
        padded = self.image_height + sum(lat), self.image_width + sum(lon)
        patched = padded[0] // self.patch_height, padded[1] // self.patch_width
        stages = tuple(self._stages(patched))
        decoded = stages[0].height * 2, stages[0].width * 2
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.image_height, self.image_width
        output = grid if self.interp else cropped
        return Geometry(grid, padded, patched, stages, decoded, output)

    def _stages(self, patched: tuple[int, int]) -> Iterator[StageGeometry]:
        height, width = patched
        for index in range(4):
            height = self.scale_sizes(index, height)[-1]
            width = self.scale_sizes(index, width)[-1]
            yield StageGeometry(
                height,
                width,
                self.dim[index],
                self.depth[index],
                self.dim[index] // self.dim_head,
                self.dim_head,
                self.local_window_size[index],
                self.global_window_size[index],
            )

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Errors of the sizes, with the arithmetic and the values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, some shards may idle.
        """
        return checks.shape_problems(self) or [
            *padding_problems(self.padding, self.image_height, self.image_width),
            *checks.stage_problems(self),
            *checks.decoder_problems(self),
            *checks.tensor_problems(self, tensor),
            *self._post_problems(),
        ]

    def _post_problems(self) -> list[str]:
        if self.gen1_post_conf is None:
            return []
        return self.gen1_post_conf.problems(self.output_channels, self.output_frames)
