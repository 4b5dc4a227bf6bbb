"""FSDP: parameters are stored split over dp_shard and gathered where their block runs.

The gather stands inside the block's `jax.checkpoint`, so that the backward pass gathers
again; its transpose is the reduce-scatter of the gradient, in float32.
"""

from __future__ import annotations

from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from credit_jax.parallel.axes import MeshAxes
from credit_jax.parallel.sharding import Declaration, ShardingRules

# Name of gathered parameters for rematerialisation policies.
GATHERED = "gathered_parameter"


def gather(
    weight: Array, declaration: Declaration, rules: ShardingRules, axes: MeshAxes
) -> Array:
    """The parameter whole over dp_shard; as it is where it was not split.

    Args:
        weight: local shard of a parameter of one block.
        declaration: of that parameter, not stacked.
        rules: the rules it was laid out by.
        axes: mesh axes.
    """
    dim = rules.shard_dim(declaration, axes)
    if dim is None:
        return weight
    whole = lax.all_gather(weight, axes.shard, axis=dim, tiled=True)
    return checkpoint_name(whole, GATHERED)
