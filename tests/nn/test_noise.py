"""Noise by position: the same draws and gradients on every mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.nn.context import Context, Noise
from credit_jax.parallel.mesh.device_mesh import DOMAIN, MeshAxes
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


@pytest.mark.slow
def test_draws_by_key_do_not_depend_on_the_place_in_the_batch() -> None:
    """Those of three keys, in any order, are those of each alone with its key."""
    keys = jax.random.split(jax.random.key(3), 3)

    def draws(order: list[int]) -> list[np.ndarray]:
        context = Context(noise=Noise(keys[np.array(order)])).fold_in(5)
        field = Field(jnp.zeros((len(order), ROWS, 4, 3)), context.rows(ROWS))
        count = len(order)
        drawn = (
            context.normal_field("normal", field),
            context.uniform_field("uniform", field),
            context.normal_vector("vector", count, 5),
            context.uniform_integer("integer", count, 1000),
        )
        return [np.asarray(own) for own in drawn]

    together, turned = draws([0, 1, 2]), draws([2, 0, 1])
    for place in range(3):
        alone = draws([place])
        for many, other, one in zip(together, turned, alone, strict=True):
            np.testing.assert_array_equal(many[place], one[0])
            np.testing.assert_array_equal(other[(place + 1) % 3], one[0])
    assert all(len(np.unique(own, axis=0)) == 3 for own in together)
    single = Context(noise=Noise(keys[1])).fold_in(5)
    np.testing.assert_array_equal(
        single.normal_vector("vector", 1, 5)[0], together[2][1]
    )


@pytest.mark.parametrize("domain", [2, 4])
def test_draws_and_gradients_are_those_of_one_device(domain: int) -> None:
    field, vector, gradient = _run(domain)
    one = _run(1)
    np.testing.assert_array_equal(field, one[0])
    np.testing.assert_array_equal(vector, one[1])
    assert_close(gradient, one[2], 1e-6, "gradient of the scale")
