"""Compute precision: the dtype of the forward; parameters, reductions stay float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


@dataclass(frozen=True)
class Precision:
    """Dtypes of a step.

    Attributes:
        compute: dtype of activations and of the weights that meet them.
        reduce: dtype of sums across devices, statistics and losses.
    """

    compute: Any = jnp.float32
    reduce: Any = jnp.float32

    @classmethod
    def of(cls, name: str) -> Precision:
        """From "float32", "bfloat16" or "float64"; float64 reduces in it, too.

        Raises:
            ValueError: another name.
        """
        known = {"float32", "bfloat16", "float64"}
        if name not in known:
            raise ValueError(
                f"precision is {name!r}; expected one of {sorted(known)}; set "
                "trainer.amp: true for bfloat16"
            )
        wide = jnp.float64 if name == "float64" else jnp.float32
        return cls(compute=jnp.dtype(name), reduce=wide)

    def cast(self, x: Array) -> Array:
        """`x` in the compute dtype."""
        return x.astype(self.compute)
