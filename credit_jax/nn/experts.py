"""A mixture-of-experts feed-forward layer: each token uses a few of many experts.

Experts are sharded over the axis ep, which outside of these layers shards samples. Each
device all-gathers the tokens of its ep group and their choices, applies its own experts
to the tokens that chose them, and a reduce-scatter sums the results of each token. All
shapes are static. The hidden units of an expert are sharded over tp, or replicated
(`etp` 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm, Linear
from credit_jax.nn.parameters import batch_stat, parameter
from credit_jax.ops.activations import gelu
from credit_jax.ops.experts import Dispatch, choose_experts, expert_biases
from credit_jax.ops.random import drop, keep_mask
from credit_jax.parallel.collectives import axis_index, psum, sum_parts
from credit_jax.parallel.compiler import FEED_FORWARD
from credit_jax.parallel.params.spec import EXPERT_MLP, EXPERTS, constant, torch_uniform
from credit_jax.parallel.rows.layout import Field


@dataclass(frozen=True)
class Routing:
    """Numbers of experts of a mixture-of-experts layer."""

    num_experts: int  # experts that tokens choose from
    top_k: int  # experts that each token chooses
    # Additional experts that every token uses, computed as one dense layer that is
    # `shared` times as wide.
    shared: int = 0


class ExpertFeedForward(nnx.Module):
    """LayerNorm, then the weighted sum of the chosen experts; with residual."""

    def __init__(
        self,
        channels: int,
        *,
        routing: Routing,
        expansion: int = 4,
        dropout: float = 0.0,
    ) -> None:
        self.routing, self.dropout = routing, dropout
        self.hidden = hidden = channels * expansion
        num = routing.num_experts
        into, back = torch_uniform(channels), torch_uniform(hidden)
        self.norm = LayerNorm(channels)
        # An expert is up, exact GELU, dropout, down. Spectral norm applies to the
        # shared experts only, not to the other experts or the router.
        self.router = parameter(into, (channels, num), ("embed", None))
        self.up = parameter(
            into, (num, channels, hidden), (EXPERTS, "embed", EXPERT_MLP)
        )
        self.up_bias = parameter(into, (num, hidden), (EXPERTS, EXPERT_MLP))
        self.down = parameter(
            back, (num, hidden, channels), (EXPERTS, EXPERT_MLP, "embed")
        )
        self.down_bias = parameter(back, (num, channels), (EXPERTS, "embed"))
        self.tp_plan = ()
        if routing.shared:
            self.tp_plan = (("shared_up", "shared_down"),)
            self.shared_up = Linear(channels, hidden * routing.shared)
            self.shared_down = Linear(hidden * routing.shared, channels)
        # Inputs of the auxiliary losses (`models.crossformer.crossformer`), means over
        # all tokens of the global batch in training: fraction of choices of each
        # expert, its router probability, and squared logsumexp of the router's logits.
        self.load = batch_stat(constant(0.0), (num,))
        self.probability = batch_stat(constant(0.0), (num,))
        self.router_z = batch_stat(constant(0.0), ())

    @jax.named_scope(FEED_FORWARD)
    def __call__(self, field: Field, context: Context) -> Field:
        normal, skip = self.norm.with_skip(field.data)
        x = normal.reshape(-1, normal.shape[-1])
        # Not in bfloat16: a logit that is rounded otherwise may choose another expert.
        wide = context.precision.wide
        kernel = self.router[...].astype(wide)
        logits = jnp.matmul(x.astype(wide), kernel, precision="highest")
        weights, chosen = choose_experts(logits, self.routing.top_k)
        if context.training:
            # Means over the tokens of the global batch; padding rows would bias them.
            real = jnp.broadcast_to(field.mask(), (*field.data.shape[:-1], 1))
            real = real.reshape(-1, 1).astype(logits.dtype)
            picked = jax.nn.one_hot(chosen, logits.shape[1], dtype=logits.dtype)
            log_sum = jax.nn.logsumexp(logits, -1, keepdims=True)
            tokens = jnp.concatenate(
                [
                    picked.mean(1),
                    jax.nn.softmax(logits, -1),
                    jnp.square(log_sum),
                    jnp.ones_like(log_sum),
                ],
                1,
            )
            sums = sum_parts(jnp.sum(tokens * real, 0), context.axes.batch)
            num = self.routing.num_experts
            means = (sums[:-1] / sums[-1]).astype(self.load[...].dtype)
            self.load[...] = means[:num]
            self.probability[...] = means[num : 2 * num]
            self.router_z[...] = means[2 * num]
        y = self._mixed(x, weights, chosen, field, context).reshape(skip.shape)
        if self.routing.shared:
            y = y + self.shared_down(gelu(self.shared_up(normal, context)), context)
        return field.like(skip + y)

    def _mixed(
        self,
        x: Float[Array, "tokens channel"],
        weights: Float[Array, "tokens choice"],
        chosen: Int[Array, "tokens choice"],
        field: Field,
        context: Context,
    ) -> Float[Array, "tokens channel"]:
        """Returns the weighted sum over the chosen experts of each token."""
        axes, wide = context.axes, context.precision.wide
        numbers = None
        if context.key is not None and self.dropout > 0.0:
            # (sample * rows + row, column) of each token, by global indices.
            batch, _, columns, _ = field.data.shape
            row = field.layout.global_rows()
            high = context.samples(batch)[:, None] * field.layout.size + row[None]
            low = field.layout.columns(columns)[None]
            both = jnp.broadcast_arrays(high[..., None], low)
            numbers = jnp.stack([number.reshape(-1) for number in both], 1)
        if axes.expert:
            # One all-gather for both: float32 represents expert indices exactly.
            both = jnp.concatenate([weights, chosen.astype(weights.dtype)], 1)
            x, both, numbers = jax.tree.map(
                lambda array: lax.all_gather(array, axes.expert, axis=0, tiled=True),
                (x, both, numbers),
            )
            weights, chosen = jnp.split(both, 2, 1)
            chosen = chosen.astype(jnp.int32)
        num = self.routing.num_experts // axes.num_expert
        first = axis_index(axes.expert) * num
        dispatch = Dispatch.of(chosen, num, first)
        units = dispatch.product(dispatch.spread(x), self.up[...])
        units = gelu(units + dispatch.of_expert(self.up_bias[...]))
        if numbers is not None and context.key is not None:
            # A mask by global sample, row, column, choice and unit.
            high, column = dispatch.spread(numbers).T
            choice = dispatch.order % dispatch.choices
            local = units.shape[-1]
            unit = jnp.arange(local)
            if local < self.hidden:
                unit = axis_index(axes.tensor) * local + unit
            low = (column * dispatch.choices + choice)[:, None] * self.hidden
            low = low + unit[None]
            keep = keep_mask(context.key, high[:, None], low, self.dropout)
            units = drop(units, keep, self.dropout)
        y = dispatch.combine(dispatch.product(units, self.down[...], wide), weights)
        if EXPERT_MLP in context.rules.tensor:
            y = psum(y, axes.tensor)
        # After the sum over tp, every device of which has all biases.
        biases = self.down_bias[...].astype(wide)
        y = y + expert_biases(weights, chosen, biases, first)
        if axes.expert:
            y = lax.psum_scatter(y, axes.expert, scatter_dimension=0, tiled=True)
        return y.astype(x.dtype)
