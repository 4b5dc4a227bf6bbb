"""Noise by position: the same draws and gradients on every mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.nn.context import Context
from credit_jax.nn.noise import Noise
from credit_jax.parallel.mesh.axes import DOMAIN, MeshAxes
from credit_jax.parallel.rows.layout import Field
from tests.support import assert_close, make_mesh

ROWS = 16


def _run(domain: int) -> list[np.ndarray]:
    """Returns a field, a vector, and the gradient of a replicated scale."""
    mesh = make_mesh(domain=domain)
    axes = MeshAxes.from_mesh(mesh)
    x = np.random.default_rng(0).normal(size=(2, ROWS, 4, 3)).astype("f4")
    spec = PartitionSpec(None, DOMAIN if domain > 1 else None)

    def body(x: Any, key: Any) -> Any:
        context = Context(axes=axes, noise=Noise(key))
        field = Field(x, context.rows(ROWS))
        noise = context.normal_field("field", field)

        def total(scale: Any) -> Any:
            return (noise * scale[None, None, None] * x).sum()

        gradient = jax.grad(total)(jnp.ones(3))
        return noise, context.normal_vector("vector", 2, 5), gradient

    whole = PartitionSpec()
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(spec, whole), out_specs=(spec, whole, whole)
    )
    return jax.device_get(jax.jit(mapped)(jnp.asarray(x), jax.random.key(3)))


@pytest.mark.parametrize("domain", [2, 4])
def test_draws_and_gradients_are_those_of_one_device(domain: int) -> None:
    field, vector, gradient = _run(domain)
    one = _run(1)
    np.testing.assert_array_equal(field, one[0])
    np.testing.assert_array_equal(vector, one[1])
    assert_close(gradient, one[2], 1e-6, "gradient of the scale")
