"""CREDIT's `crossformer-diffusion` (models/wxformer/crossformer_diffusion.py).

A `crossformer` that removes noise from a target, conditioned on the input. A prediction
is a sample of the diffusion process of `model.diffusion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.upsampling import ResidualUpBlock, UpsampleHead
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.crossformer.config import EncoderDecoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder
from credit_jax.models.diffusion.config import DiffusionKeys
from credit_jax.models.diffusion.process import NOISED, TIME
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.run_blocks import run_block


class DiffusionCrossFormerConfig(DiffusionKeys, VariableKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's CrossFormerDiffusion, with its defaults.

    Differs from CREDIT: `frames` defaults to 1, as CREDIT's default of 2 fails.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        key: f"CREDIT's crossformer-diffusion ignores it{more}"
        for key, more in {
            "output_frames": ": the output has one frame",
            "frame_patch_size": "",
            "static_channels": "",
            "upsample_v_conv": ": the decoder has transposed convolutions",
            "upsample_with_ps": ": the decoder has transposed convolutions",
            "attention_type": "",
            "decoder_attention_type": "",
            "pad_lat": "; use padding_conf",
            "pad_lon": "; use padding_conf",
        }.items()
    }
    symmetric_embedding: ClassVar[bool] = True

    type: Literal["crossformer-diffusion"] = "crossformer-diffusion"
    frames: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderDecoderConfig.problems`."""
        problems = [*self.process_problems(), *self.kernel_problems()]
        if self.patch != (1, 1):
            problems.append(
                f"model.patch_height and model.patch_width are {self.patch[0]} and "
                f"{self.patch[1]}; expected 1: CREDIT's {self.type} fails with patches"
            )
        return [*problems, *super().problems(tensor, domain)]


class DiffusionCrossFormer(EncoderDecoder):
    """The denoising network; see `DiffusionCrossFormerConfig` for its keys."""

    config: DiffusionCrossFormerConfig

    def __init__(self, config: DiffusionCrossFormerConfig) -> None:
        super().__init__(config, ResidualUpBlock, UpsampleHead)
        self.time_embedding = StageTimeEmbedding(config.dim)

    def _entering(
        self, inputs: Mapping[str, Array]
    ) -> Float[Array, "batch channel time rows lon"]:
        return jnp.concatenate([inputs[NOISED], inputs["x"]], 1)

    def _added(
        self, inputs: Mapping[str, Array], context: Context
    ) -> tuple[Float[Array, "batch channel"], ...]:
        time = context.precision.cast(inputs[TIME])
        return run_block(context, self.time_embedding, time)


class StageTimeEmbedding(nnx.Module):
    """Embeds the diffusion time into vectors to add to the outputs of all stages.

    CREDIT computes the embedding twice in a forward pass and discards the second
    result. Spectral norm therefore iterates twice, and the weights are those of the
    first call.

    Args of the constructor:
        dim: number of channels of each stage.
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
