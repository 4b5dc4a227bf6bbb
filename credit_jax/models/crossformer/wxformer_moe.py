"""WXFormer with mixtures of experts as feed-forward layers; not in CREDIT."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from credit_jax.models.common.pixel_shuffle import PixelShuffleBlock, PixelShuffleHead
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder
from credit_jax.models.crossformer.wxformer import WXFormerKeys
from credit_jax.nn.experts import ExpertFeedForward, Routing
from credit_jax.nn.layers import FeedForward
from credit_jax.ops.experts import balance_loss


class WXFormerMoEConfig(WXFormerKeys):
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

    type: Literal["wxformer_moe"] = "wxformer_moe"
    num_experts: PositiveInt = 8
    moe_top_k: PositiveInt = 2
    moe_shared_experts: NonNegativeInt = 0
    moe_frequency: Literal[1, 2] = 2
    moe_router: Literal["softmax_topk"] = "softmax_topk"
    moe_aux_loss_weight: NonNegativeFloat = 0.01
    moe_router_z_loss_weight: NonNegativeFloat = 0.0

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderConfig.problems`."""
        problems = super().problems(tensor, domain)
        if self.moe_top_k > self.num_experts:
            problems.append(
                f"model.moe_top_k is {self.moe_top_k}, more than the "
                f"{self.num_experts} experts; expected at most model.num_experts"
            )
        return problems

    @property
    def routing(self) -> Routing:
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


class WXFormerMoE(EncoderDecoder):
    """The WXFormer model with experts; see `WXFormerMoEConfig` for its keys."""

    def __init__(self, config: WXFormerMoEConfig) -> None:
        experts = partial(ExpertFeedForward, routing=config.routing)
        short = experts if config.moe_frequency == 1 else FeedForward
        super().__init__(
            config, PixelShuffleBlock, PixelShuffleHead, feed_forwards=(short, experts)
        )
