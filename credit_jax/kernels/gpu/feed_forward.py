"""Two dense layers with a GELU between them and a residual connection around them.

The backward pass saves the hidden values before the GELU; the products that read them
recompute the GELU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.kernels.gpu.dense import kernel_gradient
from credit_jax.kernels.gpu.matmul import hidden_gradient, layer_gradients, linear
from credit_jax.ops.matmul_precision import custom_vjp
from credit_jax.ops.vma import match_vma


def feed_forward(
    x: Float[Array, "*batch channel"],
    skip: Float[Array, "*batch out"],
    up: tuple[Float[Array, "channel hidden"], Float[Array, " hidden"]],
    down: tuple[Float[Array, "hidden out"], Float[Array, " out"]],
    *,
    interpret: bool = False,
) -> Float[Array, "*batch out"]:
    """Returns `skip + gelu(x @ up[0] + up[1]) @ down[0] + down[1]`.

    Args:
        x: (batch..., channel).
        skip: (batch..., out).
        up: kernel (channel, hidden) and bias (hidden,).
        down: kernel (hidden, out) and bias (out,).
        interpret: whether to run the kernels as XLA operations, on any device.
    """
    flat = x.reshape(-1, x.shape[-1]), skip.reshape(-1, skip.shape[-1])
    made: Any = _feed_forward(*match_vma(*flat, *up, *down), interpret)
    return jnp.reshape(made, skip.shape)


@partial(custom_vjp, nondiff_argnums=(6,))
def _feed_forward(
    x: Array,
    skip: Array,
    up: Array,
    up_bias: Array,
    down: Array,
    down_bias: Array,
    interpret: bool,
) -> Array:
    return _forward(x, skip, up, up_bias, down, down_bias, interpret)[0]


def _forward(
    x: Array,
    skip: Array,
    up: Array,
    up_bias: Array,
    down: Array,
    down_bias: Array,
    interpret: bool,
) -> tuple[Array, tuple[Array, ...]]:
    hidden = linear(x, up, up_bias, interpret=interpret)
    made = linear(hidden, down, down_bias, skip, activated=True, interpret=interpret)
    return made, (x, hidden, up, down, up_bias, down_bias)


def _backward(
    interpret: bool, saved: tuple[Array, ...], cotangent: Array
) -> tuple[Array, ...]:
    x, hidden, up, down, up_bias, down_bias = saved
    by_hidden, by_up_bias = hidden_gradient(
        cotangent, down, hidden, interpret=interpret
    )
    by_down, by_down_bias = layer_gradients(
        hidden, cotangent, dtype=down.dtype, activated=True, interpret=interpret
    )
    return (
        by_hidden @ up.T,
        cotangent,
        kernel_gradient(x, by_hidden).astype(up.dtype),
        by_up_bias.astype(up_bias.dtype),
        by_down,
        by_down_bias.astype(down_bias.dtype),
    )


_feed_forward.defvjp(_forward, _backward)


def project(
    x: Float[Array, "*batch channel"],
    skip: Float[Array, "*batch out"],
    kernel: Float[Array, "channel out"],
    bias: Float[Array, " out"],
    *,
    interpret: bool = False,
) -> Float[Array, "*batch out"]:
    """Returns `skip + x @ kernel + bias`.

    Args:
        x: (batch..., channel).
        skip: (batch..., out).
        kernel: (channel, out).
        bias: (out,).
        interpret: whether to run the kernel as XLA operations, on any device.
    """
    flat = x.reshape(-1, x.shape[-1]), skip.reshape(-1, skip.shape[-1])
    return jnp.reshape(_project(*match_vma(*flat, kernel, bias), interpret), skip.shape)


@partial(custom_vjp, nondiff_argnums=(4,))
def _project(
    x: Array, skip: Array, kernel: Array, bias: Array, interpret: bool
) -> Array:
    return linear(x, kernel, bias, skip, interpret=interpret)


def _project_forward(
    x: Array, skip: Array, kernel: Array, bias: Array, interpret: bool
) -> tuple[Array, tuple[Array, ...]]:
    return _project(x, skip, kernel, bias, interpret), (x, kernel, bias)


def _project_backward(
    interpret: bool, saved: tuple[Array, ...], cotangent: Array
) -> tuple[Array, ...]:
    x, kernel, bias = saved
    by_kernel, by_bias = layer_gradients(
        x, cotangent, dtype=kernel.dtype, interpret=interpret
    )
    return (
        cotangent @ kernel.T,
        cotangent,
        by_kernel,
        by_bias.astype(bias.dtype),
    )


_project.defvjp(_project_forward, _project_backward)
