"""Operations with several implementations, and which of them a program is traced with.

"xla" is the plain definition in `credit_jax.ops`; "cpu" is in `credit_jax.kernels.cpu`,
for what XLA compiles to slow code on CPU. Both compute the same function. The choice is
made while the forward pass is traced:

1. the implementation of `use_implementation`, if a program is traced under it;
2. else "cpu" on a mesh of CPU devices, "xla" on any other mesh;
3. else, outside of a mesh, "xla".

So it does not depend on the default backend of the process.

    with use_implementation("xla"):
        y = jax.jit(forward)(x)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Literal, ParamSpec, TypeVar, get_args

import jax

from credit_jax import ops
from credit_jax.kernels.cpu import conv as cpu_conv
from credit_jax.kernels.cpu import conv3d as cpu_conv3d
from credit_jax.kernels.cpu import conv_transpose as cpu_conv_transpose
from credit_jax.kernels.cpu import dense as cpu_dense
from credit_jax.kernels.cpu import norm as cpu_norm
from credit_jax.kernels.cpu import window_attention as cpu_window_attention
from credit_jax.ops import dense as xla_dense

Implementation = Literal["xla", "cpu"]

P = ParamSpec("P")
R = TypeVar("R")

# JAX traces a function anew where they differ, as it does for its own settings.
_IMPLEMENTATION = jax.make_user_context(None)
_PLATFORM = jax.make_user_context(None)


def use_implementation(name: str) -> AbstractContextManager[None]:
    """Trace with one implementation of every operation, whatever the mesh.

    Args:
        name: "xla" or "cpu".

    Raises:
        ValueError: another name.
    """
    if name not in get_args(Implementation):
        raise ValueError(
            f"the implementation is {name!r}; expected one of "
            f"{', '.join(get_args(Implementation))}"
        )
    return _IMPLEMENTATION(name)


def use_platform(name: str | None) -> AbstractContextManager[None]:
    """Traces as for a mesh of another platform, to inspect the program.

    Args:
        name: such as "gpu"; None is the platform of the mesh.
    """
    return _PLATFORM(name)


def platform() -> str | None:
    """Platform of the mesh in scope, such as "cpu"; None outside of a mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return _PLATFORM.value or (device.platform if device else None)


def implementation() -> Implementation:
    """The implementation that operations are traced with here."""
    return _IMPLEMENTATION.value or ("cpu" if platform() == "cpu" else "xla")


def _either(xla: Callable[P, R], cpu: Callable[P, R]) -> Callable[P, R]:
    """`xla` or `cpu`, chosen at each call."""

    @wraps(xla)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        return (cpu if implementation() == "cpu" else xla)(*args, **kwargs)

    return chosen


conv2d = _either(ops.conv2d, cpu_conv.conv2d)
conv3d = _either(ops.conv3d, cpu_conv3d.conv3d)
conv_transpose2d = _either(ops.conv_transpose2d, cpu_conv_transpose.conv_transpose2d)
conv_transpose3d = _either(ops.conv_transpose3d, cpu_conv_transpose.conv_transpose3d)
dense = _either(xla_dense.dense, cpu_dense.dense)
layer_norm = _either(ops.layer_norm, cpu_norm.layer_norm)
attention_logits = _either(ops.attention_logits, cpu_window_attention.attention_logits)
attend = _either(ops.attend, cpu_window_attention.attend)
