"""Selects the implementation of each operation while a program is traced.

"xla" is the reference definition in `credit_jax.ops`. "cpu" is in
`credit_jax.kernels.cpu`, for convolutions that XLA compiles to slow code on CPU. "gpu"
is in `credit_jax.kernels.gpu`, for operations that XLA splits into more kernels, with
more memory traffic, than necessary. All implementations compute the same function; an
operation without a "cpu" or "gpu" implementation uses "xla". The choice is

1. the implementation given to `use_implementation`, inside of its context;
2. otherwise, inside of a mesh, "cpu" for CPU devices, "gpu" for GPUs, else "xla";
3. otherwise "xla".

It does not depend on the default backend of the process. On devices other than GPUs the
kernels of "gpu" run in Pallas' interpreter: slowly, with the same results.

    with use_implementation("xla"):
        y = jax.jit(forward)(x)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import jax
from jaxtyping import Array, Float

from credit_jax import ops
from credit_jax.kernels.cpu import conv as cpu_conv
from credit_jax.kernels.gpu import conv as gpu_conv
from credit_jax.kernels.gpu import dense as gpu_dense
from credit_jax.kernels.gpu import norm as gpu_norm
from credit_jax.kernels.gpu import window_attention as gpu_window_attention
from credit_jax.kernels.gpu.call import is_available
from credit_jax.ops import dense as xla_dense
from credit_jax.ops.window_attention import WindowGrid

Implementation = Literal["xla", "cpu", "gpu"]

_FEW_ROWS = 1024

P = ParamSpec("P")
R = TypeVar("R")

# User contexts are part of JAX's trace cache key, like its own settings.
_IMPLEMENTATION = jax.make_user_context(None)
_PLATFORM = jax.make_user_context(None)


def use_implementation(name: str) -> AbstractContextManager[None]:
    """Context manager: traces all operations with one implementation, on any mesh."""
    if name not in get_args(Implementation):
        raise ValueError(
            f"the implementation is {name!r}; expected one of "
            f"{', '.join(get_args(Implementation))}"
        )
    return _IMPLEMENTATION(name)


def use_platform(name: str | None) -> AbstractContextManager[None]:
    """Context manager: traces as for another platform, to inspect the program."""
    return _PLATFORM(name)


def platform() -> str | None:
    """Returns the platform of the mesh or of `use_platform`, such as "cpu", or None."""
    return _PLATFORM.value or _mesh_platform()


def _mesh_platform() -> str | None:
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return None
    return "rocm" if is_amd(device) else device.platform


def is_amd(device: Any) -> bool:
    """Whether a device is a GPU of AMD; JAX's platform of all GPUs is "gpu"."""
    is_named = re.match(r"amd|radeon|gfx", device.device_kind, re.IGNORECASE)
    return device.platform in ("gpu", "rocm") and is_named is not None


def implementation() -> Implementation:
    """Returns the implementation with which operations are currently traced."""
    chosen = _IMPLEMENTATION.value
    if chosen is None and platform() == "cpu":
        return "cpu"
    if chosen is None:
        # `use_platform("gpu")` selects no kernels, which compile on GPUs only. Where
        # JAX has no backend for them, "xla" takes the place of "gpu".
        chosen = "gpu" if _mesh_platform() == "gpu" else "xla"
    return "xla" if chosen == "gpu" and not is_available() else chosen


def kernel_notes(devices: Iterable[Any]) -> list[str]:
    """A line if devices have kernels that the installed JAX does not compile."""
    if is_available() or all(d.platform != "gpu" or is_amd(d) for d in devices):
        return []
    return [
        f"JAX {jax.__version__} has no Pallas Triton, which compiles the kernels for "
        "GPUs: all operations have their plain definitions, with the same results but "
        "slower; docs/gpu_kernels.md says what to do"
    ]


def fuses(x: Array) -> bool:
    """Whether to use the kernels of "gpu" for an array, such as `window_attention`."""
    # Tensor cores multiply no float32 values, so that XLA's programs of 32-bit arrays
    # are as fast, and compile in seconds where the kernels take minutes.
    narrow = x.dtype.itemsize == 2
    return implementation() == "gpu" and (narrow or platform() != "gpu")


def window_attention(
    qkv: Float[Array, "batch rows columns three heads head_dim"],
    bias: Float[Array, "tokens tokens"],
    grid: WindowGrid,
) -> Float[Array, "batch rows columns heads head_dim"]:
    """See `kernels.gpu.window_attention.window_attention`."""
    return gpu_window_attention.window_attention(
        qkv, bias, grid, interpret=platform() != "gpu"
    )


def _either(
    xla: Callable[P, R],
    cpu: Callable[P, R] | None = None,
    gpu: Callable[P, R] | None = None,
) -> Callable[P, R]:
    """Returns a function that selects one of the implementations at each call."""
    functions = {"xla": xla, "cpu": cpu or xla, "gpu": gpu or xla}

    @wraps(xla)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        name = implementation()
        x: Any = args[0]
        return functions["xla" if name == "gpu" and not fuses(x) else name](
            *args, **kwargs
        )

    return chosen


def layer_norm_and_skip(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> tuple[Float[Array, "*batch channel"], Float[Array, "*batch channel"]]:
    """Returns `layer_norm(x, scale, bias)`, and `x` for the residual connection."""
    interprets = platform() != "gpu"
    # One kernel computes the sum of both gradients of `x`. Few values have the plain
    # definition, which XLA fuses with its neighbors.
    many = x.size >= gpu_norm.MANY_VALUES and fuses(x)
    # The interpreter takes fewer values.
    many = many or (interprets and math.prod(x.shape[:-1]) >= _FEW_ROWS)
    if implementation() == "gpu" and many:
        return gpu_norm.layer_norm_and_skip(
            x, scale, bias, epsilon=epsilon, interpret=interprets
        )
    return ops.layer_norm(x, scale, bias, epsilon=epsilon), x


def layer_norm(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "*batch channel"]:
    """`ops.layer_norm`."""
    return layer_norm_and_skip(x, scale, bias, epsilon=epsilon)[0]


conv2d = _either(ops.conv2d, cpu_conv.conv2d, gpu_conv.conv2d)
dense = _either(xla_dense.dense, gpu=gpu_dense.dense)
