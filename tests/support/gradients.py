"""Values and gradients of one function in JAX and in torch, on the same arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.errors import assert_close


def draw(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Returns standard normal numbers, equal in every run."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(dtype)


def cotangent(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """Returns the cotangent of an output of this shape: fixed random numbers."""
    return draw(shape, seed=math.prod(shape) + len(shape), dtype=dtype)


def jax_values(
    function: Callable[..., Any], *arrays: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the output, and gradients of sum(output * cotangent) by every array."""

    @jax.jit
    def run(*inputs: jax.Array) -> Any:
        out, pullback = jax.vjp(function, *inputs)
        return out, pullback(jnp.asarray(cotangent(out.shape, out.dtype)))

    out, grads = run(*arrays)
    return np.asarray(out), [np.asarray(grad) for grad in grads]


def torch_values(
    function: Callable[..., Any], *arrays: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`jax_values` of a function of torch tensors."""
    import torch

    inputs = [torch.from_numpy(x.copy()).requires_grad_() for x in arrays]
    out = function(*inputs)
    weight = cotangent(out.shape, out.detach().numpy().dtype)
    (out * torch.from_numpy(weight)).sum().backward()
    grads = [x.grad.numpy() for x in inputs if x.grad is not None]
    return out.detach().numpy(), grads


def assert_same(
    actual: tuple[np.ndarray, list[np.ndarray]],
    expected: tuple[np.ndarray, list[np.ndarray]],
    what: str,
    *,
    value: float = 1e-6,
    gradient: float = 1e-5,
) -> None:
    """Asserts output errors below `value`, and gradient errors below `gradient`."""
    assert_close(actual[0], expected[0], value, f"{what}, value")
    assert len(actual[1]) == len(expected[1]), f"{what}: gradients are missing"
    for number, (a, e) in enumerate(zip(actual[1], expected[1], strict=True)):
        assert_close(a, e, gradient, f"{what}, gradient {number}")
