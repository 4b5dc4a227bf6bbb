"""Layers, runs of blocks, and noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.packed_matrices import matrix_families
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.parallel.rows.layout import Field
from tests.models.cases import CASES
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw


def test_families_of_matrices_are_sharded_alike():
    square = ParamSpec((8, 8), (None, None), matrix_out=(1,))
    split = {path: P("dp") if path in "bd" else P(None, "dp") for path in "abcde"}
    for specs, expected in ((None, ["abcde"]), (split, ["ace", "bd"])):
        families = matrix_families(dict.fromkeys("abcde", square), specs)
        joined = ["".join(p for group in f for p in group.specs) for f in families]
        assert joined == expected


BLOCK = {**CASES["wxformer plain"].block, "depth": [0, 0, 2, 0]}


def _loops(jaxpr):
    """Returns every `scan` of a program, nested ones included, but not of kernels."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        elif equation.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(equation.params):
                yield from _loops(inner)


@pytest.mark.parametrize(
    ("implementation", "unroll_blocks", "expected"),
    [("gpu", 2, 0), ("gpu", 1, 1), ("xla", 2, 1)],
)
def test_few_blocks_are_no_loop_on_gpus(implementation, unroll_blocks, expected):
    model = build_parallel_model(BLOCK, make_mesh(), unroll_blocks=unroll_blocks)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    shape = model.model_def.inputs["x"].shape(1)
    with use_implementation(implementation):
        x = jax.ShapeDtypeStruct(shape, "float32")
        loops = [*_loops(jax.make_jaxpr(model.apply)(*weights, {"x": x}).jaxpr)]
    assert [loop.params["length"] for loop in loops] == [2] * expected


@pytest.mark.slow
def test_draws_by_key_do_not_depend_on_the_place_in_the_batch() -> None:
    """Those of three keys, in any order, are those of each alone with its key."""
    keys = jax.random.split(jax.random.key(3), 3)

    def draws(order: list[int]) -> list[np.ndarray]:
        context, count = Context(noise=Noise(keys[np.array(order)])), len(order)
        context = context.fold_in(5)
        field = Field(jnp.zeros((count, 16, 4, 3)), context.rows(16))
        drawn = (
            context.normal_field("normal", field),
            context.uniform_field("uniform", field),
            context.normal_vector("vector", count, 5),
            context.uniform_integer("integer", count, 1000),
        )
        return [np.asarray(numbers) for numbers in drawn]

    together, turned = draws([0, 1, 2]), draws([2, 0, 1])
    for place in range(3):
        alone = draws([place])
        for many, other, one in zip(together, turned, alone, strict=True):
            np.testing.assert_array_equal(many[place], one[0])
            np.testing.assert_array_equal(other[(place + 1) % 3], one[0])
    assert all(len(np.unique(numbers, axis=0)) == 3 for numbers in together)
    single = Context(noise=Noise(keys[1])).fold_in(5)
    np.testing.assert_array_equal(
        single.normal_vector("vector", 1, 5)[0], together[2][1]
    )


@cache
def _noise(domain: int) -> list[np.ndarray]:
    """Returns a field, a vector, and the gradient of a replicated scale."""
    mesh = make_mesh(domain=domain)
    axes, x = MeshAxes.from_mesh(mesh), draw((2, 16, 4, 3))

    def body(x: Any, key: Any) -> Any:
        context = Context(axes=axes, noise=Noise(key))
        noise = context.normal_field("field", Field(x, context.rows(16)))

        def total(scale: Any) -> Any:
            return (noise * scale[None, None, None] * x).sum()

        gradient = jax.grad(total)(jnp.ones(3))
        return noise, context.normal_vector("vector", 2, 5), gradient

    spec, whole = P(None, axes.domain), P()
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(spec, whole), out_specs=(spec, whole, whole)
    )
    return jax.device_get(jax.jit(mapped)(x, jax.random.key(3)))


@pytest.mark.parametrize("domain", [2, 4])
def test_draws_and_gradients_are_those_of_one_device(domain: int) -> None:
    (field, vector, gradient), one = _noise(domain), _noise(1)
    np.testing.assert_array_equal(field, one[0])
    np.testing.assert_array_equal(vector, one[1])
    assert_close(gradient, one[2], 1e-6, "gradient of the scale")
    assert np.abs(field[0] - field[1]).mean() > 0.5, "each sample has its own"
