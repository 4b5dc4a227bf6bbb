"""The order of an array's elements in memory, where XLA's own choice is slow."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array


def row_major(x: Array) -> Array:
    """Returns the array with its last dim contiguous in memory, and so its gradient.

    XLA lets a product or a convolution choose, which costs others more. On an H200:
    (4500, 4096) in columns, whose length of 9,000 bytes is no multiple of 16, took
    three times as long in the next product; kernel gradients in the order of a
    convolution were transposed in float32 within the optimizer's update, which took
    three times as long.
    """
    return with_layout_constraint(jnp.asarray(x), Layout(tuple(range(x.ndim))))
