"""Means of sharded fields: equal on every mesh, whatever the padding contains."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import block_layout
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.sharded import GARBAGE

MESHES = {
    "one device": {},
    "dp 2": {"dp": 2},
    "domain 3": {"domain": 3},
    "domain 8": {"domain": 8},
    "dp 2, tp 2, domain 2": {"dp": 2, "tp": 2, "domain": 2},
    "dp 4, domain 2": {"dp": 4, "domain": 2},
}


def run(mesh, values, weights):
    """Returns mean, channel means, sample means, and the gradient of the mean."""
    axes = MeshAxes.from_mesh(mesh)
    rows = block_layout(values.shape[3], axes.num_domain, axes.domain, dim=3)
    padding = rows.num_shards * rows.length - rows.size
    widths = [(0, 0)] * 3 + [(0, padding), (0, 0)]
    x = np.pad(values, widths, constant_values=GARBAGE)
    reducer = FieldReducer(rows, axes)

    def body(x):
        mean, gradient = jax.value_and_grad(partial(reducer.mean, row_weights=weights))(
            x
        )
        return (
            mean,
            gradient,
            reducer.channel_mean(x, weights),
            reducer.sample_mean(x, weights),
        )

    spec = PartitionSpec(axes.data or None, None, None, axes.domain)
    whole = PartitionSpec()
    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=spec,
        out_specs=(whole, spec, whole, PartitionSpec(axes.data or None)),
    )
    mean, gradient, channels, samples = jax.jit(sharded)(x)
    assert not np.asarray(gradient)[:, :, :, rows.size :].any(), (
        "padding has a gradient"
    )
    return mean, np.asarray(gradient)[:, :, :, : rows.size], channels, samples


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MESHES)
def test_means_on_every_mesh(name, weighted):
    values = draw((4, 3, 2, 13, 5)) + 1
    weights = draw((13,), seed=1) ** 2 if weighted else None
    w = np.ones(13) if weights is None else weights.astype(np.float64)
    product = values.astype(np.float64) * w[:, None]
    mean, gradient, channels, samples = run(make_mesh(**MESHES[name]), values, weights)
    assert_close(mean, product.mean(), 1e-6, f"{name}, mean")
    assert_close(channels, product.mean((0, 2, 3, 4)), 1e-6, f"{name}, channels")
    assert_close(samples, product.mean((3, 4)), 1e-6, f"{name}, samples")
    expected = np.broadcast_to(w[:, None], values.shape) / values.size
    assert_close(gradient, expected, 1e-6, f"{name}, gradient")


def test_bfloat16_is_summed_in_float32():
    values = jnp.ones((1, 1, 1, 300, 3), jnp.bfloat16)
    mean = FieldReducer(block_layout(300, dim=3), MeshAxes()).mean(values)
    assert mean.dtype == jnp.float32
    assert mean == 1.0
