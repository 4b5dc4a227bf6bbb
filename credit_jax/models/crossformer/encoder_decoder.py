"""The CrossFormer family: a windowed-attention encoder, a decoder, skip connections.

The encoder has four stages, each a cross-scale strided convolution followed by short
and long window attention. The decoder has three blocks that double the grid, each
concatenated with the output of the stage of its size, and a head that doubles it once
more. The models differ in the blocks of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.config import FieldSpec
from credit_jax.models.common.entry import correct, enter, leave
from credit_jax.models.common.resampling import PatchEmbed
from credit_jax.models.crossformer.blocks import DENSE, CrossFormerStage, FeedForwards
from credit_jax.models.crossformer.config import EncoderDecoderConfig
from credit_jax.nn.context import Context
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.rows.layout import Field


class EncoderDecoder(nnx.Module):
    """Base class of the models of the family."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        make_up: Callable[[int, int, int], nnx.Module],
        make_head: Callable[[int, int], nnx.Module],
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        self.config = config
        x, y = config.inputs["x"], config.output
        assert isinstance(x, FieldSpec), "the input x is a field"
        folded = x.channels * (config.frames if config.frame_fold == "channel" else 1)
        self.cube_embedding = PatchEmbed(
            folded, config.dim[0], config.frames, config.patch
        )
        # Fields of a diffusion process (one frame, no patches) are concatenated with x.
        others = [s for name, s in config.network_inputs.items() if name != "x"]
        folded += sum(s.channels for s in others if isinstance(s, FieldSpec))
        widths = (folded if config.patch == (1, 1) else config.dim[0], *config.dim)
        self.stages = nnx.List(
            CrossFormerStage(config, i, widths[i], feed_forwards=feed_forwards)
            for i in range(4)
        )
        last, groups = config.dim[3], config.dim[0]
        skips = config.dim[2], config.dim[1], config.dim[0]
        ups, width = [], last
        for index, skip in enumerate(skips):
            channels = last // 2 ** (index + 1)
            ups.append(make_up(width, channels, groups))
            width = channels + skip
        self.up_blocks = nnx.List(ups)
        self.head = make_head(width, y.channels * y.frames)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, x = self.config, self._entering(inputs)
        fold = config.frame_fold if config.patch == (1, 1) else "channel"
        field = enter(
            context.precision.cast(x),
            config.image_height,
            context,
            config.padding,
            fold,
        )
        if config.patch != (1, 1):
            field = run_block(context, self.cube_embedding, field)
        added = self._added(inputs, context)
        encodings = []
        for index, stage in enumerate(self.stages):
            field = stage(field, context.fold_in(index))
            if added:
                field = field.like(field.data + added[index][:, None, None])
            field = self._encoded(field, index, context)
            encodings.append(field)
        for index, up in enumerate(self.up_blocks):
            field = self._decoded(run_block(context, up, field), index, context)
            field = join(field, encodings[2 - index])
        field = run_block(context, self.head, field)
        y = leave(field, config, interpolate=config.interp).astype(x.dtype)
        return correct(config, x, y, context)

    def _entering(
        self, inputs: Mapping[str, Array]
    ) -> Float[Array, "batch channel time rows lon"]:
        """Returns the fields that enter the first stage."""
        return inputs["x"]

    def _added(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Sequence[Float[Array, "batch channel"]]:
        """Returns vectors to add to the output of each stage; () for none."""
        del inputs, context
        return ()

    def _encoded(self, field: Field, index: int, context: Context) -> Field:
        """Hook that transforms the output of a stage."""
        del index, context
        return field

    def _decoded(self, field: Field, index: int, context: Context) -> Field:
        """Hook that transforms the output of a block of the decoder."""
        del index, context
        return field
