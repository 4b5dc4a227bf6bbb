"""Kernels and bytes of traced programs, as XLA fuses them on GPUs."""

import math

import jax
import jax.numpy as jnp
import pytest

from credit_jax.models.flops import needed_part
from credit_jax.plan.fusions import traced_kernels

N = 256
X = jax.ShapeDtypeStruct((N, N), jnp.float32)
BYTES = 4 * N * N


def kernels(function, *arrays, ordered=False):
    program = jax.jit(function).trace(*arrays or (X,)).jaxpr.jaxpr
    return traced_kernels(needed_part(program), ordered=ordered)


def moved(function, *arrays, **options):
    return sum(k.times * k.bytes for k in kernels(function, *arrays, **options))


def test_elementwise_operations_are_one_kernel_that_reads_and_writes_once():
    (kernel,) = kernels(lambda x: jnp.tanh(2 * x.T[None] + 1).reshape(-1))
    assert kernel.bytes == 2 * BYTES


def test_a_reduction_computes_what_it_reduces():
    (kernel,) = kernels(lambda x: jnp.exp(x).sum(0))
    assert kernel.bytes == BYTES + 4 * N


def test_reductions_of_one_array_are_one_kernel():
    (kernel,) = kernels(lambda x: (x.sum(0), (x * x).sum(0)))
    assert kernel.bytes == BYTES + 2 * 4 * N


def test_a_reduction_of_many_values_is_two_kernels():
    tall = jax.ShapeDtypeStruct((100_000, 4), jnp.float32)
    wide = jax.ShapeDtypeStruct((4, 10_000), jnp.float32)
    assert len(kernels(lambda x: x.sum(0), tall)) == 2
    assert len(kernels(lambda x: x.sum(1), wide)) == 1


def test_a_product_reads_and_writes_memory():
    done = kernels(lambda x: jnp.tanh(x) @ x + 1)
    assert [k.bytes for k in done] == [2 * BYTES, 3 * BYTES, 2 * BYTES]
    assert sum(k.flops for k in done) == 2 * N**3


def test_what_several_kernels_use_is_computed_again_where_that_moves_less():
    def used(*arrays):
        mean = sum(arrays[1:], 2 * arrays[0])
        half, quarter = (jax.lax.slice_in_dim(mean, 0, N, n) for n in (2, 4))
        return mean.sum(0), jnp.tanh(half), jnp.cos(quarter)

    again = BYTES * (1 + 2 / 2 + 2 / 4) + 4 * N
    assert moved(used, X) == again
    # Of five arrays the mean is written, by the kernel that sums it.
    assert moved(used, *[X] * 5) == again + 5 * BYTES


def test_a_slice_and_a_gather_read_what_they_take():
    (kernel,) = kernels(lambda x: x[:8] * 2)
    assert kernel.bytes == 2 * 8 * N * 4
    (kernel,) = kernels(lambda x: x[jnp.array([1, 5, 2])])
    assert kernel.bytes < 4 * 3 * N * 4


def test_scatters_in_one_order_sort_their_numbers_and_scan_them():
    rows = jnp.arange(0, N, 2)

    def added(x, *, unique):
        at = x.at[rows]
        return at.add(jnp.tanh(x[: N // 2]), unique_indices=unique)

    def unordered(x):
        return added(x, unique=True)

    def ordered(x):
        return added(x, unique=False)

    numbers = N * N // 2
    plain = moved(unordered, ordered=True)
    assert plain == moved(ordered)
    steps = math.log2(numbers)
    more = moved(ordered, ordered=True) - plain
    assert more >= steps * (2 * 4 + 4) * numbers
    assert more < (steps + 3) * (2 * 4 + 4) * numbers


def test_what_passes_the_barrier_of_remat_is_in_memory():
    def block(x):
        return jnp.sin(jnp.cos(jnp.tanh(x)))

    policy = jax.checkpoint_policies.everything_saveable
    saved = jax.checkpoint(block, policy=policy)
    plain = moved(jax.grad(lambda x: block(x).sum()))
    assert moved(jax.grad(lambda x: saved(x).sum())) > plain


def test_a_loop_reads_and_writes_in_every_iteration():
    def looped(x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c), None), x, None, 5)[0]

    assert moved(looped) == pytest.approx(5 * 2 * BYTES)
