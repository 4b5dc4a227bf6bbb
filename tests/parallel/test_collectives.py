"""Sums and collectives over axes of a mesh."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel.collectives import psum_varying, pvary_each
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import block_layout
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.sharded import GARBAGE


@pytest.mark.slow
def test_the_gradients_of_arrays_that_vary_together_are_one_sum() -> None:
    mesh = make_mesh(domain=4)
    arrays = [jnp.float32(2.0), jnp.arange(3.0), jnp.ones((2, 2)), jnp.ones(5)]
    axes = [("domain",), ("domain",), ("domain",), ()]

    @partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())
    def gradient(arrays: list[Array]) -> Any:
        def loss(arrays: list[Array]) -> Array:
            factor = lax.axis_index("domain") + 1.0
            varying = pvary_each(arrays, axes)
            assert [bool(varying_axes(x)) for x in varying] == [True, True, True, False]
            return psum_varying(sum(jnp.sum(x * factor) for x in varying[:3]))

        return jax.value_and_grad(loss)(arrays)

    value, found = gradient(arrays)
    assert float(value) == 10.0 * (2.0 + 3.0 + 4.0)
    for x, by_x, number in zip(arrays, found, (10.0, 10.0, 10.0, 0.0), strict=True):
        np.testing.assert_array_equal(by_x, np.full(x.shape, number))
    text = jax.jit(gradient).lower(arrays).as_text()
    assert text.count("stablehlo.all_reduce") == 2, "of the loss and of all gradients"


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "degrees",
    [
        *({}, {"dp": 2}, {"domain": 3}, {"domain": 8}, {"dp": 4, "domain": 2}),
        {"dp": 2, "tp": 2, "domain": 2},
    ],
    ids=str,
)
def test_means_on_every_mesh(degrees, weighted):
    values = draw((4, 3, 2, 13, 5)) + 1
    weights = draw((13,), seed=1) ** 2 if weighted else None
    mesh = make_mesh(**degrees)
    axes = MeshAxes.from_mesh(mesh)
    rows = block_layout(13, axes.num_domain, axes.domain, dim=3)
    widths = [(0, 0)] * 3 + [(0, rows.num_shards * rows.length - 13), (0, 0)]
    x = np.pad(values, widths, constant_values=GARBAGE)
    reducer = FieldReducer(rows, axes)

    def body(x):
        mean = partial(reducer.mean, row_weights=weights)
        each = reducer.channel_mean(x, weights), reducer.sample_mean(x, weights)
        return *jax.value_and_grad(mean)(x), *each

    spec, samples = (
        P(axes.data or None, *more) for more in ((None, None, axes.domain), ())
    )
    run = jax.shard_map(
        body, mesh=mesh, in_specs=spec, out_specs=(P(), spec, P(), samples)
    )
    mean, gradient, channels, samples = jax.jit(run)(x)
    assert not gradient[:, :, :, 13:].any(), "padding has a gradient"
    w = np.ones(13) if weights is None else weights.astype(np.float64)
    product = values.astype(np.float64) * w[:, None]
    assert_close(mean, product.mean(), 1e-6, "mean")
    assert_close(channels, product.mean((0, 2, 3, 4)), 1e-6, "channels")
    assert_close(samples, product.mean((3, 4)), 1e-6, "samples")
    expected = np.broadcast_to(w[:, None], values.shape) / values.size
    assert_close(gradient[:, :, :, :13], expected, 1e-6, "gradient")


def test_bfloat16_is_summed_in_float32():
    values = jnp.ones((1, 1, 1, 300, 3), jnp.bfloat16)
    mean = FieldReducer(block_layout(300, dim=3), MeshAxes()).mean(values)
    assert mean.dtype == jnp.float32
    assert mean == 1.0
