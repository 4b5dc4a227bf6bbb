"""Rematerialization policies of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.parallel.collectives import MOVED
from credit_jax.parallel.params.fsdp import GATHERED

ACTIVATIONS = ("none", "full", "selective")


@dataclass(frozen=True)
class Remat:
    """The rematerialization policy of every block."""

    # CREDIT's `trainer.activation_checkpoint`: "none" saves the activations of a block;
    # "full" recomputes all of them in the backward pass except results of collectives;
    # "selective" only those of attention, whose weights take the most memory for the
    # least compute. Spectral norm runs before the first block and is never recomputed.
    activations: str = "none"
    # Of parameters sharded by FSDP: True gathers them again in the backward pass; False
    # saves the gathered copies; a number saves those of that many blocks at the end of
    # the forward pass, which the backward pass uses first.
    reshard_after_forward: bool | int = True
    # Names (`checkpoint_name`) of further values that "full" saves.
    saved: tuple[str, ...] = ()

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

    def num_saved(self, first: int, num: int, total: int) -> int:
        """Returns how many of `num` consecutive blocks save gathered parameters."""
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
        """Applies `jax.checkpoint` with this policy to a block."""
        if self.activations == "full":
            names = [*([GATHERED] if keep else []), MOVED, *self.saved]
            policy = jax.checkpoint_policies.save_only_these_names(*names)
        elif not keep:
            policy = _save_all_but_parameters
        else:
            return body
        # Outside of a loop, XLA would merge the gathers of forward and backward pass.
        return jax.checkpoint(body, policy=policy, prevent_cse=not in_loop)

    def attention(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Applies `jax.checkpoint` to an attention inside of a block if "selective"."""
        return jax.checkpoint(body) if self.activations == "selective" else body


# Primitives that only rearrange or convert. Their results are recomputed: a saved
# result that depends on a gathered parameter would keep all of it alive.
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


def _save_all_but_parameters(primitive: Any, *inputs: Any, **params: Any) -> bool:
    """`jax.checkpoint` policy that saves everything except gathered parameters."""
    if primitive.name == "name":
        return params["name"] != GATHERED
    # What is saved goes through reduce_precision, which takes no complex values.
    dtypes = (getattr(value, "dtype", jnp.dtype(bool)) for value in inputs)
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        return False
    return primitive.name not in _REARRANGING | {"complex", "fft"}
