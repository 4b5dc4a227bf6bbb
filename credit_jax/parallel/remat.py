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
        self, body: Callable[..., Any], *, gathers: bool = True
    ) -> Callable[..., Any]:
        """`body` under `jax.checkpoint` with this policy.

        Args:
            body: the block as a function of its stored parameters and inputs.
            gathers: whether it gathers parameters at all.
        """
        policies = jax.checkpoint_policies
        if self.activations:
            keep = [] if self.parameters else [GATHERED]
            policy = policies.save_only_these_names(*keep)
        elif self.parameters and gathers:
            policy = policies.save_anything_except_these_names(GATHERED)
        else:
            return body
        return jax.checkpoint(body, policy=policy, prevent_cse=False)
