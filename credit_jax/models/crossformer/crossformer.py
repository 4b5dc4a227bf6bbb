"""Models of the CrossFormer family that differ in their decoder and their channels.

CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py) and `camulator`
(models/camulator.py, a climate emulator) have pixel-shuffle blocks; the older
`crossformer` (models/crossformer.py), whose released weights are those of WXFormer, and
`crossformer_downscaling` (models/wxformer/crossformer_downscaling.py, on regional
grids) have transposed convolutions, or interpolation and convolution. `wxformer_moe`,
with mixtures of experts, is not in CREDIT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from credit_jax.config.base import Unavailable
from credit_jax.models.common.config import (
    ChannelCountKeys,
    FlatPaddingKeys,
    VariableKeys,
    ignored_by,
    register_model,
)
from credit_jax.models.common.resampling import (
    FrameFold,
    PixelShuffleBlock,
    PixelShuffleHead,
    ResidualUpBlock,
    UpsampleHead,
)
from credit_jax.models.crossformer.blocks import EncoderDecoder
from credit_jax.models.crossformer.config import (
    BRANCH,
    DECODER,
    EMBEDDINGS,
    NO_FLAT_PADS,
    ONE_FRAME,
    PADDED_EMBEDDINGS,
    PIXEL_SHUFFLE,
    PIXEL_SHUFFLE_DECODER,
    STAGES,
    TRANSPOSED,
    EncoderConfig,
    EncoderDecoderConfig,
    block_names,
    unused_patch_embedding,
)
from credit_jax.nn.experts import ExpertFeedForward, Routing
from credit_jax.nn.layers import FeedForward
from credit_jax.ops.experts import balance_loss
from credit_jax.state_dict.torch_model import RemovedLayer, TorchModel

CROSSFORMER = TorchModel(
    key_table=(*EMBEDDINGS, *STAGES, *DECODER),
    block_names=block_names,
    idle_modules=unused_patch_embedding,
)
CAMULATOR = replace(
    CROSSFORMER, key_table=(*EMBEDDINGS, *STAGES, *PIXEL_SHUFFLE_DECODER)
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
    key_table=(*PADDED_EMBEDDINGS, *STAGES, *PIXEL_SHUFFLE_DECODER),
    renames=(BRANCH,),
    removed=(_TRANSPOSED_DECODER,),
)


class WXFormerConfig(EncoderConfig):
    """Constructor keys of CREDIT's WXFormer, with its defaults."""

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
        "wxformer",
        "frame_patch_size upsample_v_conv decoder_attention_type",
        attention_type=": it builds no attention from it",
        **PIXEL_SHUFFLE,
        **NO_FLAT_PADS,
    )

    type: Literal["wxformer", "wxformer_base"] = "wxformer"


@register_model(WXFormerConfig, WXFORMER)
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
        """Returns the weighted sums of losses over all expert layers, by name.

        Losses of weight 0 are omitted; see `ModelConfig.auxiliary_losses`.
        """
        layers = batch_stats.values()
        losses = {}
        if self.moe_aux_loss_weight:
            sums = [balance_loss(s["load"], s["probability"]).sum() for s in layers]
            losses["expert_balance"] = self.moe_aux_loss_weight * jnp.stack(sums).sum()
        if self.moe_router_z_loss_weight:
            sums = [layer["router_z"].sum() for layer in layers]
            losses["router_z"] = self.moe_router_z_loss_weight * jnp.stack(sums).sum()
        return losses


@register_model(WXFormerMoEConfig)
class WXFormerMoE(EncoderDecoder):
    """The WXFormer model with experts; see `WXFormerMoEConfig` for its keys."""

    def __init__(self, config: WXFormerMoEConfig) -> None:
        experts = partial(ExpertFeedForward, routing=config.routing)
        short = experts if config.moe_frequency == 1 else FeedForward
        super().__init__(config, feed_forwards=(short, experts))


class CamulatorConfig(VariableKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's Camulator, with its defaults.

    Differs from CREDIT: patches may be padded, and dims need not double.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **EncoderDecoderConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
    }

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
        "camulator",
        "frame_patch_size upsample_v_conv attention_type decoder_attention_type "
        "diffusion",
        **ONE_FRAME,
        **PIXEL_SHUFFLE,
        **NO_FLAT_PADS,
    )
    symmetric_embedding: ClassVar[bool] = True
    frame_fold: ClassVar[FrameFold] = "mean"
    output_frames: ClassVar[int] = 1

    type: Literal["camulator"] = "camulator"


@register_model(CamulatorConfig, CAMULATOR)
class Camulator(EncoderDecoder):
    """The Camulator model; see `CamulatorConfig` for its keys."""

    def __init__(self, config: CamulatorConfig) -> None:
        up = partial(PixelShuffleBlock, smooth=False, sharp_spectral_norm=False)
        super().__init__(config, up, partial(PixelShuffleHead, smooth=False))


def _attention(value: Any) -> Any:
    """Converts to lower case as CREDIT does, and "none" to None."""
    value = value.lower() if isinstance(value, str) else value
    return None if value == "none" else value


Attention = Annotated[
    Literal["coordinate", "eca", "spatial", "scse_optimized", "scse_standard", "mixed"]
    | None,
    BeforeValidator(_attention),
]


class CrossFormerConfig(EncoderConfig, FlatPaddingKeys):
    """Constructor keys of CREDIT's CrossFormer, with its defaults; see `EncoderConfig`.

    Attributes:
        attention_type: attention at the end of each block of the decoder; None or
            "none" for no attention.
        upsample_v_conv: whether the decoder interpolates and convolves, instead of
            transposed convolutions.
    """

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
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


@register_model(CrossFormerConfig, CROSSFORMER)
class CrossFormer(EncoderDecoder):
    """The CrossFormer model; see `CrossFormerConfig` for its keys."""

    def __init__(self, config: CrossFormerConfig) -> None:
        interpolate, attention = config.upsample_v_conv, config.attention_type
        super().__init__(
            config,
            partial(ResidualUpBlock, interpolate=interpolate, attention=attention),
            partial(UpsampleHead, interpolate=interpolate),
        )


class DownscalingCrossFormerConfig(ChannelCountKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's DownscalingCrossFormer, with its defaults.

    Differs from CREDIT: patches may be padded, and dims need not double.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **EncoderDecoderConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
    }
    small_is_padded: ClassVar[bool] = False

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
        "crossformer_downscaling",
        "frame_patch_size attention_type decoder_attention_type diffusion",
        **ONE_FRAME,
        levels="; see channels",
        surface_channels="; see channels",
        input_only_channels="; see channels",
        output_only_channels="; see channels",
        **TRANSPOSED,
        **NO_FLAT_PADS,
    )
    symmetric_embedding: ClassVar[bool] = True
    frame_fold: ClassVar[FrameFold] = "mean"
    output_frames: ClassVar[int] = 1

    type: Literal["crossformer_downscaling"] = "crossformer_downscaling"


# With the keys of the variant with transposed convolutions.
@register_model(DownscalingCrossFormerConfig, CROSSFORMER)
class DownscalingCrossFormer(EncoderDecoder):
    """The downscaling model; see `DownscalingCrossFormerConfig` for its keys."""

    def __init__(self, config: DownscalingCrossFormerConfig) -> None:
        super().__init__(config, ResidualUpBlock, UpsampleHead)
