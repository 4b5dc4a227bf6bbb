"""Mixed precision: dtypes of the forward pass, of reductions and of the output."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from credit_jax.config.trainer import MatmulPrecision

FLOAT32 = jnp.dtype("float32")
COMPUTE = ("float32", "bfloat16", "float16", "float64")
REDUCE = ("float32", "bfloat16", "float64")


@dataclass(frozen=True)
class Float8:
    """Selects the dense layers that multiply in float8, as `ops.dense` does."""

    min_channels: int = 1024  # of input and of output
    gradient_dtype: Literal["float8_e4m3fn", "float8_e5m2"] = "float8_e4m3fn"

    def takes(self, channels_in: int, channels_out: int) -> bool:
        """Whether a matrix of this shape is multiplied in float8."""
        # The global matrix decides, not how a mesh shards it; the hardware requires 16.
        dims = (channels_in, channels_out)
        return all(dim >= self.min_channels and dim % 16 == 0 for dim in dims)


@dataclass(frozen=True)
class Precision:
    """Dtypes of a step.

    Parameters are stored in float32, or in float64 if `compute` is float64. Inputs of
    the model are cast to `compute`, and so are parameters before they are gathered.
    Statistics, softmax, losses and sums over tensor-parallel devices are always
    computed in float32 or wider.

    Attributes:
        compute: dtype of activations and parameters in the forward pass.
        reduce: dtype in which gradients are summed over devices.
        output: dtype that the model's output is rounded to; None for no rounding.
        float8: selects the dense layers that multiply in float8; None for no layer.
        matmul: precision of products and convolutions of float32 arrays, if `compute`
            is float32: "highest" is float32 itself, "high" and "default" are what the
            device has between float32 and its fastest format (docs/numerics.md).

    >>> credit_jax.Precision.of("bfloat16").compute.name
    'bfloat16'
    """

    compute: Any = FLOAT32
    reduce: Any = FLOAT32
    output: Any = None
    float8: Float8 | None = None
    matmul: str = "highest"

    def __post_init__(self) -> None:
        if self.matmul not in get_args(MatmulPrecision):
            raise ValueError(
                f"the matmul precision is {self.matmul!r}; expected one of "
                f"{', '.join(get_args(MatmulPrecision))}; in a config, "
                "trainer.matmul_precision says it"
            )

    @classmethod
    def of(cls, name: str) -> Precision:
        """Returns the policy for a compute dtype; only "float64" reduces in float64.

        Args:
            name: "float32", "bfloat16", "float16" or "float64".

        Raises:
            ValueError: any other name.
        """
        wide = "float64" if name == "float64" else "float32"
        return cls(compute=_dtype(name, COMPUTE), reduce=_dtype(wide, REDUCE))

    @property
    def wide(self) -> Any:
        """Dtype of sums inside the model: float32 or, if wider, the compute dtype."""
        return jnp.promote_types(self.compute, jnp.float32)

    @property
    def needs_scaling(self) -> bool:
        """Whether training needs loss scaling, which is the case only for float16."""
        return self.compute == jnp.float16

    def products(self) -> AbstractContextManager[None]:
        """Context manager: traces products and convolutions with `matmul`.

        Without it, GPUs multiply float32 arrays in TF32 and TPUs in bfloat16. It has no
        effect if `compute` has 16 bits.
        """
        if jnp.dtype(self.compute).itemsize < FLOAT32.itemsize:
            return nullcontext()
        return jax.default_matmul_precision(self.matmul)

    def with_float8(self, float8: Float8) -> Precision:
        """Returns this policy with dense layers in float8.

        Raises:
            ValueError: the compute dtype is float16.
        """
        if self.compute == jnp.float16:
            raise ValueError(
                "float8 (fp8) goes with a compute dtype of bfloat16 or float32, got "
                "float16; in a config: trainer.fsdp2_mp_policy.param_dtype: bfloat16"
            )
        return replace(self, float8=float8)

    def cast(self, x: Array) -> Array:
        """Casts `x` to the compute dtype."""
        return x.astype(self.compute)

    def cast_output(self, x: Array) -> Array:
        """Rounds `x` to the output dtype, if there is one."""
        return x if self.output is None else x.astype(self.output)


def default_mp_policy(
    param_dtype: str = "bfloat16",
    *,
    reduce_dtype: str = "float32",
    output_dtype: str | None = None,
    matmul_precision: str = "highest",
) -> Precision:
    """Returns a policy from the dtypes of FSDP2's `MixedPrecisionPolicy`.

    Args:
        param_dtype: dtype that parameters and inputs are cast to.
        reduce_dtype: dtype in which gradients are summed over devices.
        output_dtype: dtype that the output is rounded to; None for no rounding.
        matmul_precision: "highest", "high" or "default"; see `Precision.matmul`.

    Raises:
        ValueError: an unsupported dtype or matmul precision.

    >>> default_mp_policy().compute.name
    'bfloat16'
    """
    output = None if output_dtype is None else _dtype(output_dtype, COMPUTE)
    return Precision(
        _dtype(param_dtype, COMPUTE),
        _dtype(reduce_dtype, REDUCE),
        output,
        matmul=matmul_precision,
    )


def _dtype(name: Any, available: tuple[str, ...]) -> Any:
    text = name if isinstance(name, str) else jnp.dtype(name).name
    if text not in available:
        raise ValueError(
            f"precision is {text!r}; expected one of {', '.join(available)}; in a "
            "config, trainer.amp: true with trainer.fsdp2_mp_policy says it"
        )
    return jnp.dtype(text)
