"""Mixed precision: dtypes of the forward, of reductions and of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

FLOAT32 = jnp.dtype("float32")
COMPUTE = ("float32", "bfloat16", "float16", "float64")
REDUCE = ("float32", "bfloat16", "float64")


@dataclass(frozen=True)
class Precision:
    """Dtypes of a step; parameters are stored in float32, or float64 to compute in it.

    Inputs of the model are cast to `compute`, and weights before they are gathered.
    Statistics, softmax, losses and sums over tensor-parallel devices are always in
    float32 or wider.

    Attributes:
        compute: dtype of activations and weights in the forward.
        reduce: dtype in which gradients are summed over devices.
        output: dtype that the model's output is rounded to; None for no rounding.
    """

    compute: Any = FLOAT32
    reduce: Any = FLOAT32
    output: Any = None

    @classmethod
    def of(cls, name: str) -> Precision:
        """From "float32", "bfloat16", "float16" or "float64", which also reduces in it.

        Raises:
            ValueError: another name.
        """
        wide = "float64" if name == "float64" else "float32"
        return cls(compute=_dtype(name, COMPUTE), reduce=_dtype(wide, REDUCE))

    @property
    def wide(self) -> Any:
        """Dtype of sums inside the model: float32 or, if wider, the compute dtype."""
        return jnp.promote_types(self.compute, jnp.float32)

    @property
    def needs_scaling(self) -> bool:
        """Whether training needs loss scaling: only in float16."""
        return self.compute == jnp.float16

    def cast(self, x: Array) -> Array:
        """`x` in the compute dtype."""
        return x.astype(self.compute)

    def cast_output(self, x: Array) -> Array:
        """`x` rounded to the output dtype."""
        return x if self.output is None else x.astype(self.output)


def default_mp_policy(
    param_dtype: str = "bfloat16",
    *,
    reduce_dtype: str = "float32",
    output_dtype: str | None = None,
) -> Precision:
    """Mixed precision: `param_dtype` in the forward, gradients summed in float32.

    Args:
        param_dtype: dtype that weights and inputs are cast to.
        reduce_dtype: dtype in which gradients are summed over devices.
        output_dtype: dtype that the output is rounded to; None for no rounding.

    Raises:
        ValueError: another dtype.

    >>> default_mp_policy().compute.name
    'bfloat16'
    """
    output = None if output_dtype is None else _dtype(output_dtype, COMPUTE)
    return Precision(_dtype(param_dtype, COMPUTE), _dtype(reduce_dtype, REDUCE), output)


def _dtype(name: Any, known: tuple[str, ...]) -> Any:
    text = name if isinstance(name, str) else jnp.dtype(name).name
    if text not in known:
        raise ValueError(
            f"precision is {text!r}; expected one of {', '.join(known)}; in a config, "
            "trainer.amp: true with trainer.fsdp2_mp_policy says it"
        )
    return jnp.dtype(text)
