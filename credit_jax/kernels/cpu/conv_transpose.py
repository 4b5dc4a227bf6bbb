"""Transposed convolutions that use `kernels.cpu.dense` for kernels of a single tap."""

from functools import partial

from credit_jax import ops
from credit_jax.kernels.cpu.dense import dense

conv_transpose2d = partial(ops.conv_transpose2d, product=dense)
conv_transpose3d = partial(ops.conv_transpose3d, product=dense)
