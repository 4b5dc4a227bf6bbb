"""Rematerialization of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from credit_jax.parallel.collectives import MOVED
from credit_jax.parallel.params.fsdp import GATHERED

ACTIVATIONS = ("none", "full", "selective")


@dataclass(frozen=True)
class Remat:
    """The rematerialization policy of every block.

    Spectral norm runs before the first block and is never recomputed.

    Attributes:
        activations: "none" keeps the activations of a block; "full" recomputes all of
            them in the backward pass but what collectives gave; "selective" only those
            of attention, whose weights take the most memory for the least compute.
            CREDIT's
            `trainer.activation_checkpoint`.
        reshard_after_forward: of parameters split by FSDP. True gathers them again in
            the backward pass; False keeps the gathered copies; a number keeps those of
            at most that many blocks, the last of the forward, which the backward pass
            uses first.
    """

    activations: str = "none"
    reshard_after_forward: bool | int = True

    def __post_init__(self) -> None:
        if self.activations not in ACTIVATIONS:
            raise ValueError(
                f"activation checkpointing is {self.activations!r}; expected one of "
                f"{', '.join(ACTIVATIONS)}"
            )
        if self.reshard_after_forward < 0:
            raise ValueError(
                f"reshard_after_forward is {self.reshard_after_forward}; expected true,"
                " false, or the number of blocks (0 or more) that stay gathered"
            )

    @property
    def counts_blocks(self) -> bool:
        """Whether the policy depends on the number of a block."""
        return not isinstance(self.reshard_after_forward, bool)

    def kept_of(self, first: int, num: int, total: int) -> int:
        """How many of `num` blocks, the last of them, keep gathered parameters.

        Args:
            first: number of blocks before these.
            num: how many there are.
            total: blocks of the whole model.
        """
        reshard = self.reshard_after_forward
        if isinstance(reshard, bool):
            return 0 if reshard else num
        return min(max(first + num - max(total - reshard, 0), 0), num)

    def block(
        self,
        body: Callable[..., Any],
        *,
        keep: bool,
        in_loop: bool = False,
    ) -> Callable[..., Any]:
        """`body` under `jax.checkpoint` with this policy.

        Args:
            body: the block as a function of its stored parameters and inputs.
            keep: whether gathered parameters are kept, or there are none.
            in_loop: whether the block is in a loop of several iterations; outside of
                one, XLA must be kept from merging the gathers of forward and backward.
        """
        if self.activations == "full":
            names = [GATHERED, MOVED] if keep else [MOVED]
            policy = jax.checkpoint_policies.save_only_these_names(*names)
        elif not keep:
            policy = _save_all_but_parameters
        else:
            return body
        return jax.checkpoint(body, policy=policy, prevent_cse=not in_loop)

    def attention(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """`body`, an attention inside a block, rematerialized if "selective"."""
        return jax.checkpoint(body) if self.activations == "selective" else body


# Primitives that only rearrange or convert: their results are made again, not kept,
# since one that is made of a gathered parameter would keep all of it.
_REARRANGING = {
    "all_gather",
    "broadcast_in_dim",
    "convert_element_type",
    "reshape",
    "slice",
    "split",
    "squeeze",
    "transpose",
}


def _save_all_but_parameters(primitive: Any, *_: Any, **params: Any) -> bool:
    """A policy of `jax.checkpoint`: saves everything but gathered parameters."""
    if primitive.name == "name":
        return params["name"] != GATHERED
    return primitive.name not in _REARRANGING
