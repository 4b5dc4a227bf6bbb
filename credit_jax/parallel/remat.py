"""Rematerialisation: what a block keeps of its forward pass for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from credit_jax.parallel.fsdp import GATHERED


@dataclass(frozen=True)
class Remat:
    """The policy of every block.

    Attributes:
        activations: True recomputes the activations of a block in the backward pass
            (CREDIT's `trainer.activation_checkpoint`); False keeps them.
        parameters: True gathers FSDP parameters again in the backward pass (FSDP2's
            reshard_after_forward); False keeps the gathered copies.
    """

    activations: bool = False
    parameters: bool = True

    def apply(
        self,
        body: Callable[..., Any],
        *,
        gathers: bool = True,
        in_loop: bool = False,
    ) -> Callable[..., Any]:
        """`body` under `jax.checkpoint` with this policy.

        Args:
            body: the block as a function of its stored parameters and inputs.
            gathers: whether it gathers parameters at all.
            in_loop: whether a loop of several turns parts forward and backward;
                elsewhere XLA must be kept from merging the two gathers.
        """
        if self.activations:
            keep = [] if self.parameters else [GATHERED]
            policy = jax.checkpoint_policies.save_only_these_names(*keep)
        elif self.parameters and gathers:
            policy = _save_all_but_parameters
        else:
            return body
        return jax.checkpoint(body, policy=policy, prevent_cse=not in_loop)


# Primitives that only rearrange or convert: their results are made again, not kept,
# since one that is made of a gathered parameter would keep all of it.
_REARRANGING = {
    "all_gather",
    "broadcast_in_dim",
    "convert_element_type",
    "reshape",
    "squeeze",
    "transpose",
}


def _save_all_but_parameters(primitive: Any, *_: Any, **params: Any) -> bool:
    """A policy of `jax.checkpoint`: keep results, but no gathered parameter."""
    if primitive.name == "name":
        return params["name"] != GATHERED
    return primitive.name not in _REARRANGING
