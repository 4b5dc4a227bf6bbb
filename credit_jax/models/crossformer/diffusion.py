"""CREDIT's `crossformer-diffusion` (models/wxformer/crossformer_diffusion.py).

A `crossformer` that removes noise from a target, conditioned on the input. A prediction
is a sample of the diffusion process of `model.diffusion`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.config import VariableKeys, ignored_by, register_model
from credit_jax.models.common.resampling import ResidualUpBlock, UpsampleHead
from credit_jax.models.crossformer.blocks import EncoderDecoder
from credit_jax.models.crossformer.config import (
    DECODER,
    EMBEDDINGS,
    NO_FLAT_PADS,
    ONE_FRAME,
    STAGES,
    TRANSPOSED,
    EncoderDecoderConfig,
    block_names,
    unused_patch_embedding,
    without_patches,
)
from credit_jax.models.diffusion.process import DiffusionKeys
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.state_dict.key_table import below, key_table
from credit_jax.state_dict.torch_model import TorchModel


class DiffusionCrossFormerConfig(DiffusionKeys, VariableKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's CrossFormerDiffusion, with its defaults.

    Differs from CREDIT: `frames` defaults to 1, as CREDIT's default of 2 fails.
    """

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
        "crossformer-diffusion",
        "frame_patch_size static_channels attention_type decoder_attention_type",
        **ONE_FRAME,
        **TRANSPOSED,
        **NO_FLAT_PADS,
    )
    symmetric_embedding: ClassVar[bool] = True

    type: Literal["crossformer-diffusion"] = "crossformer-diffusion"
    frames: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        yield from without_patches(self)


# As its trainer writes them: the buffers of the process, then the network's keys under
# "model.".
DIFFUSION = TorchModel(
    key_table=below(
        "model",
        (
            *EMBEDDINGS,
            *STAGES,
            *key_table("""
                time_to_emb.0        time_embedding/first       linear
                time_to_emb.2        time_embedding/second      linear
                time_emb_proj.{s}.1  time_embedding/stages/{s}  linear
            """),
            *DECODER,
        ),
    ),
    block_names=lambda config: [f"model.{name}" for name in block_names(config)],
    idle_modules=lambda config: [
        f"model.{name}" for name in unused_patch_embedding(config)
    ],
    # The buffers of the process, which precede the keys of the network.
    constants=lambda config: config.process.tables,
)


@register_model(DiffusionCrossFormerConfig, DIFFUSION)
class DiffusionCrossFormer(EncoderDecoder):
    """The denoising network; see `DiffusionCrossFormerConfig` for its keys."""

    def __init__(self, config: DiffusionCrossFormerConfig) -> None:
        super().__init__(config, ResidualUpBlock, UpsampleHead)
        self.time_embedding = StageTimeEmbedding(config.dim)


class StageTimeEmbedding(nnx.Module):
    """Embeds the diffusion time into vectors to add to the outputs of all stages.

    CREDIT computes the embedding twice in a forward pass and discards the second
    result. Spectral norm therefore iterates twice, and the weights are those of the
    first call.
    """

    def __init__(self, dim: tuple[int, ...]) -> None:
        self.first = Linear(1, dim[0], calls=2)
        self.second = Linear(dim[0], dim[0], calls=2)
        self.stages = nnx.List(Linear(dim[0], channels) for channels in dim)

    def __call__(
        self, time: Float[Array, "batch 1"], context: Context
    ) -> tuple[Float[Array, "batch channel"], ...]:
        del context
        embedded = jax.nn.silu(self.second(jax.nn.silu(self.first(time))))
        return tuple(stage(embedded) for stage in self.stages)
