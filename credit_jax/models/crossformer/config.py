"""Config keys shared by the models of the CrossFormer family.

The family has four encoder stages, a decoder that doubles the grid four times, and
padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import PositiveInt

from credit_jax.models.common.config import ModelConfig
from credit_jax.models.common.frames import FrameFold, unseen_frames
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.padded_config import PaddedConfig
from credit_jax.models.common.padding import PaddingConfig, padding_problems, repeated
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.crossformer import checks
from credit_jax.ops.conv import conv_out_size
from credit_jax.parallel.domain.conv import scale_padding

Stages = Annotated[
    tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], repeated(4)
]
Depths = Annotated[tuple[int, int, int, int], repeated(4)]
Kernels = tuple[tuple[PositiveInt, ...], ...]


class StagesConfig(ModelConfig):
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

    trades_heads: ClassVar[bool] = True
    # Whether embeddings pad symmetrically (`parallel.domain.conv.scale_padding`).
    symmetric_embedding: ClassVar[bool] = False

    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    frames: PositiveInt = 2
    dim: Stages = (64, 128, 256, 512)
    depth: Depths = (2, 2, 8, 2)
    dim_head: PositiveInt = 32
    global_window_size: Stages = (5, 5, 2, 1)
    local_window_size: Stages = (10, 10, 10, 10)
    cross_embed_kernel_sizes: Kernels = ((4, 8, 16, 32), (2, 4), (2, 4), (2, 4))
    cross_embed_strides: Stages = (4, 2, 2, 2)
    use_spectral_norm: bool = True

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch; (1, 1) for no patch embedding."""
        return 1, 1

    @property
    def padding(self) -> PaddingConfig | None:
        """The active padding, or None."""
        return None

    @property
    def fits_grid(self) -> bool:
        """Whether the output is interpolated to the grid."""
        return True

    @property
    def pads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows (north, south) and columns (west, east) to add; zeros for none."""
        pad = self.padding
        return (pad.pad_lat, pad.pad_lon) if pad else ((0, 0), (0, 0))

    def scale_sizes(self, index: int, size: int) -> list[int]:
        """Returns the output size of each kernel of the embedding of a stage.

        Args:
            index: index of the stage.
            size: number of input points along a dim.
        """
        stride = self.cross_embed_strides[index]
        sizes = []
        for kernel in sorted(self.cross_embed_kernel_sizes[index]):
            pad = scale_padding(kernel, stride, symmetric=self.symmetric_embedding)
            sizes.append(conv_out_size(size, kernel, stride, pad))
        return sizes

    def geometry(self) -> Geometry:
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
        lat, lon = self.pads
        padded = self.image_height + sum(lat), self.image_width + sum(lon)
        patched = padded[0] // self.patch[0], padded[1] // self.patch[1]
        stages = tuple(self._stages(patched))
        decoded = stages[0].height * 2, stages[0].width * 2
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.image_height, self.image_width
        output = grid if self.fits_grid else cropped
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


class EncoderDecoderConfig(PaddedConfig, StagesConfig):
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
    attn_dropout: float = 0.0
    ff_dropout: float = 0.0
    interp: bool = True

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.frame_fold == "mean" and self.patch == (1, 1):
            notes |= unseen_frames(self.frames)
        return notes

    @property
    def patch(self) -> tuple[int, int]:
        """See `StagesConfig.patch`."""
        return self.patch_height, self.patch_width

    @property
    def fits_grid(self) -> bool:
        """See `StagesConfig.fits_grid`."""
        return self.interp

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Returns errors of the sizes, with arithmetic and values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, but shards may be idle.
        """
        return [
            *checks.shape_problems(self),
            *checks.patch_problems(self),
            *checks.dropout_problems(self),
        ] or [
            *padding_problems(self.padding, self.image_height, self.image_width),
            *checks.stage_problems(self),
            *checks.decoder_problems(self),
            *checks.tensor_problems(self, tensor),
            *self.post_problems(),
        ]


class EncoderConfig(VariableKeys, EncoderDecoderConfig):
    """Keys of `wxformer` and `crossformer`.

    Attributes:
        output_frames: number of time steps of the output.
    """

    output_frames: PositiveInt = 1
