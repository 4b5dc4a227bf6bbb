"""Models of the CrossFormer family that differ in their decoder and their channels.

CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py) and `camulator`
(models/camulator.py, a climate emulator) have pixel-shuffle blocks; the older
`crossformer` (models/crossformer.py), whose released weights are those of WXFormer, and
`crossformer_downscaling` (models/wxformer/crossformer_downscaling.py, on regional
grids) have transposed convolutions, or interpolation and convolution. `wxformer_moe`,
with mixtures of experts, is not in CREDIT.

`crossformer-diffusion` (models/wxformer/crossformer_diffusion.py) is a `crossformer`
that removes noise from a target, conditioned on the input; a prediction is a sample of
the diffusion process of `model.diffusion`. `crossformer-ensemble` and
`crossformer-style` (models/wxformer/crossformer_ensemble.py) are one model, which adds
noise to its features, in training and in evaluation; each draw gives a member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from credit_jax.config.base import Unavailable
from credit_jax.kernels import dense
from credit_jax.models.common import config as common
from credit_jax.models.common import resampling
from credit_jax.models.crossformer import config as family
from credit_jax.models.crossformer.blocks import EncoderDecoder
from credit_jax.models.diffusion.process import DiffusionKeys
from credit_jax.nn.context import Context
from credit_jax.nn.experts import ExpertFeedForward, Routing
from credit_jax.nn.layers import FeedForward, Linear
from credit_jax.nn.parameters import (
    Parameter,
    named_variables,
    param_spec_of,
    parameter,
)
from credit_jax.ops.dense import add_bias
from credit_jax.ops.experts import balance_loss
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import below, key_table
from credit_jax.state_dict.torch_model import RemovedLayer, TorchModel

CROSSFORMER = TorchModel(
    key_table=(*family.EMBEDDINGS, *family.STAGES, *family.DECODER),
    block_names=family.block_names,
    idle_modules=family.unused_patch_embedding,
)
CAMULATOR = replace(
    CROSSFORMER,
    key_table=(*family.EMBEDDINGS, *family.STAGES, *family.PIXEL_SHUFFLE_DECODER),
)
_TRANSPOSED_DECODER = RemovedLayer(
    re.compile(r"up_block4\.weight(_orig)?"),
    "the decoder is made of transposed convolutions, which CREDIT removed from "
    "wxformer and does not load either: none of its up_block1 to up_block4 has a "
    "counterpart in today's decoder. If the model is a CREDIT crossformer, which has "
    "this decoder, write model.type: crossformer; otherwise train it again",
)
WXFORMER = replace(
    CROSSFORMER,
    key_table=(
        *family.PADDED_EMBEDDINGS,
        *family.STAGES,
        *family.PIXEL_SHUFFLE_DECODER,
    ),
    renames=(family.BRANCH,),
    removed=(_TRANSPOSED_DECODER,),
)


class WXFormerConfig(family.EncoderConfig):
    """Constructor keys of CREDIT's WXFormer, with its defaults."""

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "wxformer",
        "frame_patch_size upsample_v_conv decoder_attention_type",
        attention_type=": it builds no attention from it",
        **family.PIXEL_SHUFFLE,
        **family.NO_FLAT_PADS,
    )

    type: Literal["wxformer", "wxformer_base"] = "wxformer"


@common.register_model(WXFormerConfig, WXFORMER)
class WXFormer(EncoderDecoder):
    """The WXFormer model; see `WXFormerConfig` for its keys."""


class WXFormerMoEConfig(WXFormerConfig):
    """Keys of WXFormer, and those of its experts, named as in KempnerForge.

    Attributes:
        num_experts: number of experts of a layer.
        moe_top_k: number of experts that each token chooses.
        moe_shared_experts: number of additional experts that every token uses.
        moe_frequency: 1 for experts in all feed-forward layers, 2 for experts in every
            second layer, which is the layer after long attention.
        moe_router: only "softmax_topk", whose weights are the largest probabilities of
            a softmax, divided by their sum.
        moe_aux_loss_weight: weight of the load-balancing loss of each layer
            (`ops.experts.balance_loss`), which is 1 for uniform routing.
        moe_router_z_loss_weight: weight of the router z-loss of each layer, the mean
            squared logsumexp of the router's logits.
    """

    type: Literal["wxformer_moe"] = "wxformer_moe"  # type: ignore[assignment]
    num_experts: PositiveInt = 8
    moe_top_k: PositiveInt = 2
    moe_shared_experts: NonNegativeInt = 0
    moe_frequency: Literal[1, 2] = 2
    moe_router: Literal["softmax_topk"] = "softmax_topk"
    moe_aux_loss_weight: NonNegativeFloat = 0.01
    moe_router_z_loss_weight: NonNegativeFloat = 0.0

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        if self.moe_top_k > self.num_experts:
            yield (
                f"model.moe_top_k is {self.moe_top_k}, more than the "
                f"{self.num_experts} experts; expected at most model.num_experts"
            )

    @property
    def routing(self) -> Routing:  # type: ignore[override]
        """See `ModelConfig.routing`."""
        return Routing(self.num_experts, self.moe_top_k, self.moe_shared_experts)

    def auxiliary_losses(
        self, batch_stats: Mapping[str, Mapping[str, Array]]
    ) -> dict[str, Float[Array, ""]]:
        """Returns the weighted sums of losses over all expert layers, by name."""
        # Losses of weight 0 are omitted; see `ModelConfig.auxiliary_losses`.
        layers = batch_stats.values()
        losses = {}
        if self.moe_aux_loss_weight:
            sums = [balance_loss(s["load"], s["probability"]).sum() for s in layers]
            losses["expert_balance"] = self.moe_aux_loss_weight * jnp.stack(sums).sum()
        if self.moe_router_z_loss_weight:
            sums = [layer["router_z"].sum() for layer in layers]
            losses["router_z"] = self.moe_router_z_loss_weight * jnp.stack(sums).sum()
        return losses


@common.register_model(WXFormerMoEConfig)
class WXFormerMoE(EncoderDecoder):
    """The WXFormer model with experts; see `WXFormerMoEConfig` for its keys."""

    def __init__(self, config: WXFormerMoEConfig) -> None:
        experts = partial(ExpertFeedForward, routing=config.routing)
        short = experts if config.moe_frequency == 1 else FeedForward
        super().__init__(config, feed_forwards=(short, experts))


class MeanFrameConfig(family.EncoderDecoderConfig):
    """Keys of models that take the mean of frames, and give one.

    Differs from CREDIT: patches may be padded, and dims need not double.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **family.EncoderDecoderConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
    }

    symmetric_embedding: ClassVar[bool] = True
    frame_fold: ClassVar[resampling.FrameFold] = "mean"
    output_frames: ClassVar[int] = 1


class CamulatorConfig(common.VariableKeys, MeanFrameConfig):
    """Constructor keys of CREDIT's Camulator, with its defaults."""

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "camulator",
        "frame_patch_size upsample_v_conv attention_type decoder_attention_type "
        "diffusion",
        **family.ONE_FRAME,
        **family.PIXEL_SHUFFLE,
        **family.NO_FLAT_PADS,
    )

    type: Literal["camulator"] = "camulator"


@common.register_model(CamulatorConfig, CAMULATOR)
class Camulator(EncoderDecoder):
    """The Camulator model; see `CamulatorConfig` for its keys."""

    def __init__(self, config: CamulatorConfig) -> None:
        up = partial(
            resampling.PixelShuffleBlock, smooth=False, sharp_spectral_norm=False
        )
        super().__init__(config, up, partial(resampling.PixelShuffleHead, smooth=False))


def _attention(value: Any) -> Any:
    """Converts to lower case as CREDIT does, and "none" to None."""
    value = value.lower() if isinstance(value, str) else value
    return None if value == "none" else value


Attention = Annotated[
    Literal["coordinate", "eca", "spatial", "scse_optimized", "scse_standard", "mixed"]
    | None,
    BeforeValidator(_attention),
]


class CrossFormerConfig(family.EncoderConfig, common.FlatPaddingKeys):
    """Constructor keys of CREDIT's CrossFormer, with its defaults; see `EncoderConfig`.

    Attributes:
        attention_type: attention at the end of each block of the decoder; None or
            "none" for no attention.
        upsample_v_conv: whether the decoder interpolates and convolves, instead of
            transposed convolutions.
    """

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "crossformer",
        "frame_patch_size static_channels upsample_with_ps",
        decoder_attention_type="; see attention_type",
    )
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "diffusion": Unavailable(
            "a crossformer that is a denoiser is not available; remove the key",
            harmless=(False,),
        )
    }
    symmetric_embedding: ClassVar[bool] = True

    attention_type: Attention = None
    upsample_v_conv: bool = False

    type: Literal["crossformer"] = "crossformer"


@common.register_model(CrossFormerConfig, CROSSFORMER)
class CrossFormer(EncoderDecoder):
    """The CrossFormer model; see `CrossFormerConfig` for its keys."""

    def __init__(self, config: CrossFormerConfig) -> None:
        interpolate, attention = config.upsample_v_conv, config.attention_type
        super().__init__(
            config,
            partial(
                resampling.ResidualUpBlock, interpolate=interpolate, attention=attention
            ),
            partial(resampling.UpsampleHead, interpolate=interpolate),
        )


class DownscalingCrossFormerConfig(common.ChannelCountKeys, MeanFrameConfig):
    """Constructor keys of CREDIT's DownscalingCrossFormer, with its defaults."""

    small_is_padded: ClassVar[bool] = False

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "crossformer_downscaling",
        "frame_patch_size attention_type decoder_attention_type diffusion",
        **family.ONE_FRAME,
        levels="; see channels",
        surface_channels="; see channels",
        input_only_channels="; see channels",
        output_only_channels="; see channels",
        **family.TRANSPOSED,
        **family.NO_FLAT_PADS,
    )

    type: Literal["crossformer_downscaling"] = "crossformer_downscaling"


# With the keys of the variant with transposed convolutions.
@common.register_model(DownscalingCrossFormerConfig, CROSSFORMER)
class DownscalingCrossFormer(EncoderDecoder):
    """The downscaling model; see `DownscalingCrossFormerConfig` for its keys."""

    def __init__(self, config: DownscalingCrossFormerConfig) -> None:
        super().__init__(config, resampling.ResidualUpBlock, resampling.UpsampleHead)


class DiffusionCrossFormerConfig(
    DiffusionKeys, common.VariableKeys, family.EncoderDecoderConfig
):
    """Constructor keys of CREDIT's CrossFormerDiffusion, with its defaults.

    Differs from CREDIT: `frames` defaults to 1, as CREDIT's default of 2 fails.
    """

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "crossformer-diffusion",
        "frame_patch_size static_channels attention_type decoder_attention_type",
        **family.ONE_FRAME,
        **family.TRANSPOSED,
        **family.NO_FLAT_PADS,
    )
    symmetric_embedding: ClassVar[bool] = True

    type: Literal["crossformer-diffusion"] = "crossformer-diffusion"
    frames: Literal[1] = 1  # pyright: ignore[reportIncompatibleVariableOverride]

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        yield from family.without_patches(self)


# As its trainer writes them: the buffers of the process, then the network's keys under
# "model.".
DIFFUSION = TorchModel(
    key_table=below(
        "model",
        (
            *family.EMBEDDINGS,
            *family.STAGES,
            *key_table("""
                time_to_emb.0        time_embedding/first       linear
                time_to_emb.2        time_embedding/second      linear
                time_emb_proj.{s}.1  time_embedding/stages/{s}  linear
            """),
            *family.DECODER,
        ),
    ),
    block_names=lambda config: [f"model.{name}" for name in family.block_names(config)],
    idle_modules=lambda config: [
        f"model.{name}" for name in family.unused_patch_embedding(config)
    ],
    # The buffers of the process, which precede the keys of the network.
    constants=lambda config: config.process.tables,
)


@common.register_model(DiffusionCrossFormerConfig, DIFFUSION)
class DiffusionCrossFormer(EncoderDecoder):
    """The denoising network; see `DiffusionCrossFormerConfig` for its keys."""

    def __init__(self, config: DiffusionCrossFormerConfig) -> None:
        super().__init__(config, resampling.ResidualUpBlock, resampling.UpsampleHead)
        self.time_embedding = StageTimeEmbedding(config.dim)


class StageTimeEmbedding(nnx.Module):
    """Embeds the diffusion time into vectors to add to the outputs of all stages."""

    # CREDIT computes the embedding twice in a forward pass and discards the second
    # result. Spectral norm therefore iterates twice, and the weights are those of the
    # first call.

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


class EnsembleConfig(CrossFormerConfig):
    """Constructor keys of CREDIT's CrossFormerWithNoise, with its defaults.

    Attributes:
        noise_latent_dim: size of the latent noise of a sample.
        encoder_noise_factor, decoder_noise_factor: constant factors of the noise.
        encoder_noise: whether to add noise after stages of the encoder; it is always
            added after blocks of the decoder.
        freeze: whether only the layers of the noise are trained.
        correlated: whether all layers share the latent noise of a forward pass.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **CrossFormerConfig.small_keys,
        "noise_latent_dim": 8,
    }

    ignored: ClassVar[Mapping[str, str]] = {
        **CrossFormerConfig.ignored,
        "pretrained_weights": "CREDIT ignores it; use trainer.load_weights",
        **common.ignored_by(
            "crossformer-ensemble", "noise_scheduler noise_input_dim state_latent_dim"
        ),
    }

    draws_noise: ClassVar[bool] = True

    type: Literal[  # pyright: ignore[reportIncompatibleVariableOverride]
        "crossformer-ensemble", "crossformer-style"
    ] = "crossformer-ensemble"
    noise_latent_dim: PositiveInt = 128
    encoder_noise_factor: float = 0.05
    decoder_noise_factor: float = 0.275
    encoder_noise: bool = True
    freeze: bool = True
    correlated: bool = False

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`; CREDIT's forward pass fails with these, too."""
        for key in ("frames", "output_frames"):
            if getattr(self, key) != 1:
                yield (
                    f"model.{key} is {getattr(self, key)}; expected 1: CREDIT's "
                    f"{self.type} takes and gives one frame"
                )
        yield from family.without_patches(self)
        for index in range(3):
            channels = self.dim[3] // 2 ** (3 - index)
            if self.encoder_noise and self.dim[index] != channels:
                yield (
                    f"model.dim[{index}] is {self.dim[index]}; expected dim[3] / "
                    f"{2 ** (3 - index)} = {channels}: CREDIT's noise has as many"
                )
        yield from super().problems()


_INJECTION = """
    modulation       modulation  1 c 1 1 -> c
    noise_factor     factor
    noise_transform  .           linear
"""
ENSEMBLE = replace(
    CROSSFORMER,
    key_table=(
        *CROSSFORMER.key_table,
        *key_table(_INJECTION, "encoder_noise_layers.{i}", "encoder_noise/{i}"),
        *key_table(_INJECTION, "noise_inject1", "decoder_noise/0"),
        *key_table(_INJECTION, "noise_inject2", "decoder_noise/1"),
        *key_table(_INJECTION, "noise_inject3", "decoder_noise/2"),
    ),
    lists_frozen=False,
)


@common.register_model(EnsembleConfig, ENSEMBLE)
class EnsembleCrossFormer(CrossFormer):
    """The ensemble model; see `EnsembleConfig` for its keys."""

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__(config)
        if config.freeze:
            # All but the layers of the noise, which follow.
            for _, variable in named_variables(self, Parameter):
                spec = replace(param_spec_of(variable), frozen=True)
                variable.set_metadata(param_spec=spec)
        latent, last = config.noise_latent_dim, config.dim[3]
        if config.encoder_noise:
            # After every stage except the last.
            factor = config.encoder_noise_factor
            self.encoder_noise = nnx.List(
                NoiseInjection(f"encoder {i}", latent, last // 2 ** (3 - i), factor)
                for i in range(3)
            )
        factor = config.decoder_noise_factor
        self.decoder_noise = nnx.List(
            NoiseInjection(f"decoder {i}", latent, last // 2 ** (i + 1), factor)
            for i in range(3)
        )


class NoiseInjection(nnx.Module):
    """CREDIT's StochasticDecompositionLayer."""

    # x + factor * noise * style(z) * modulation, with noise N(0, 1) at every point and
    # channel, and a linear layer `style` of the latent noise z of each sample.

    def __init__(self, name: str, latent: int, channels: int, factor: float) -> None:
        self.name = name
        init = torch_uniform(latent)
        shape = latent, channels
        # No spectral norm: CREDIT adds these layers after applying it to the model.
        self.kernel = parameter(init, shape, ("embed", "embed"))
        self.bias = parameter(init, (channels,), ("embed",))
        self.modulation = parameter(constant(1.0), (channels,), ("embed",))
        self.factor = parameter(constant(factor), (1,), (None,), frozen=True)

    def __call__(
        self, field: Field, latent: Float[Array, "batch latent"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        kernel, dtype = self.kernel[...], field.data.dtype
        style = add_bias(dense(latent.astype(dtype), kernel), self.bias[...])
        scale = style * self.modulation[...][None]
        noise = context.normal_field(self.name, field).astype(dtype)
        noise = noise * self.factor[...][None, None, None]
        return field.data + noise * scale[:, None, None]
