"""Kernels for many arrays in interpret mode against the plain definitions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from credit_jax.kernels.gpu import many
from credit_jax.ops import packed
from tests.support.gradients import assert_same, draw, jax_values

# One tile, several programs for one sum along either dim, sides that divide nothing.
SHAPES = ((2, 40, 24), (1, 130, 5), (1, 2100, 33), (1, 1, 70_000))
SIZES = {"u": [n * o for n, _, o in SHAPES], "v": [n * i for n, i, _ in SHAPES]}


@pytest.fixture(params=[0, 2**11], ids=["alone", "small packed"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets which arrays are packed before the kernels read them."""
    monkeypatch.setattr(many, "_SMALL", request.param)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("side", ["u", "v"])
def test_products_and_their_gradients(side: packed.Side) -> None:
    matrices = [draw(shape, seed) for seed, shape in enumerate(SHAPES)]
    vectors = draw((sum(SIZES[side]),), 9)

    def run(function: Any, *arrays: Any) -> Any:
        *matrices, vectors = arrays
        return function(matrices, vectors, side)

    kernel, plain = (
        jax_values(partial(run, f), *matrices, vectors)
        for f in (partial(many.products, interpret=True), packed.products)
    )
    assert_same(kernel, plain, f"products by {side}", value=1e-6, gradient=1e-6)


@pytest.mark.parametrize("side", ["u", "v"])
def test_dots_and_their_gradients(side: packed.Side) -> None:
    rows = packed.rows_of([jnp.zeros(shape) for shape in SHAPES], side)
    left, right = (draw((sum(SIZES[side]),), seed) for seed in range(2))
    kernel, plain = (
        jax_values(partial(f, rows=rows), left, right)
        for f in (partial(many.dots, interpret=True), packed.dots)
    )
    assert_same(kernel, plain, "dots", value=1e-6, gradient=1e-6)


@pytest.mark.usefixtures("small")
def test_scale_and_its_gradients() -> None:
    arrays = [draw((*shape, 2), seed) for seed, shape in enumerate(SHAPES)]
    factors = draw((sum(len(array) for array in arrays),), 9)

    def run(function: Any, *arrays: Any) -> Any:
        *given, factors = arrays
        return packed.pack(function(given, factors))

    kernel, plain = (
        jax_values(partial(run, f), *arrays, factors)
        for f in (partial(many.scale, interpret=True), packed.scale)
    )
    assert_same(kernel, plain, "scale", value=1e-6, gradient=1e-6)


def test_slices_and_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of one kernel, one of several programs, and one that is too large."""
    monkeypatch.setattr(many, "_SMALL", 10_000)
    arrays = [draw((2, *shape), k) for k, shape in enumerate([(), (5,), (4500,)])]
    arrays.append(draw((2, 3, 2000), 9))

    def run(function: Any, *arrays: Any) -> Any:
        first, second = function(arrays)
        return packed.pack([*first, *(2 * part for part in second)])

    kernel, plain = (
        jax_values(partial(run, f), *arrays)
        for f in (partial(many.unstack, interpret=True), packed.unstack)
    )
    assert_same(kernel, plain, "slices", value=0.0, gradient=0.0)


def test_numbers_of_rows() -> None:
    rows = ((2, 3), (1, 2))
    numbers = jnp.asarray([1.0, 2.0, 3.0])
    for function in (many.spread, packed.spread):
        assert function(numbers, rows).tolist() == [1, 1, 1, 2, 2, 2, 3, 3]


def test_arrays_of_more_values_than_indices_have_the_plain_definition() -> None:
    matrix = jax.ShapeDtypeStruct((2, 2**15, 2**15), jnp.float32)
    vectors = jax.ShapeDtypeStruct((2**16,), jnp.float32)
    scales = jax.ShapeDtypeStruct((2,), jnp.float32)
    products = jax.make_jaxpr(partial(many.products, side="u"))([matrix], vectors)
    scaled = jax.make_jaxpr(jax.grad(lambda x, f: many.scale([x], f)[0].sum(), 1))(
        matrix, scales
    )
    assert "pallas_call" not in f"{products}{scaled}"


def test_slices_of_each_type_keep_it() -> None:
    arrays = [jnp.arange(6.0).reshape(2, 3), jnp.arange(2)]
    first, second = many.unstack(arrays, interpret=True)
    assert [part.dtype for part in first] == [array.dtype for array in arrays]
    assert (first[0].tolist(), second[1].item()) == ([0, 1, 2], 1)


def test_sums_are_in_float32_or_wider() -> None:
    """A 16-bit sum of 8192 ones stops at 256."""
    ones = jnp.ones(8192, jnp.bfloat16)
    (total,) = many.dots(ones, ones, ((1, 8192),), interpret=True)
    assert (total.dtype, total) == (jnp.float32, 8192)
    with jax.enable_x64(True):
        wide = jnp.ones(8, jnp.float64)
        assert many.dots(wide, wide, ((1, 8),), interpret=True).dtype == jnp.float64
