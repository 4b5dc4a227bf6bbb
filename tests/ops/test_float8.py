"""Float8 products against numpy with ml_dtypes, and on split matrices."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.ops.dense import float8_dense, quantize
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.mesh.device_mesh import DOMAIN, TP
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw, jax_values

NARROW, WIDE = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def rounded(x: np.ndarray, axis: int | None, dtype: Any = NARROW) -> np.ndarray:
    """Returns values rounded to float8 with power-of-two scales, in float64."""
    top = float(ml_dtypes.finfo(dtype).max)
    largest = np.abs(x).max(axis=axis, keepdims=True).astype(np.float64)
    power = np.floor(np.log2(top / np.where(largest > 0, largest, top)))
    scale = 2.0**power
    return (x * scale).astype(dtype).astype(np.float64) / scale


def emulated(x: np.ndarray, kernel: np.ndarray, grad: np.ndarray, dtype: Any):
    """Returns the emulated product of matrices and its gradients."""
    y = rounded(x, 1) @ rounded(kernel, None)
    by_x = rounded(grad, 1, dtype) @ rounded(kernel, None).T
    return y, by_x, x.astype(np.float64).T @ grad.astype(np.float64)


@pytest.mark.parametrize("dtype", [NARROW, WIDE], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("spread", [0.0, 6.0], ids=["alike", "over 12 decades"])
def test_product_and_gradients_are_those_of_rounded_values(
    spread: float, dtype: Any
) -> None:
    x, kernel, grad = draw((24, 48)), draw((48, 32), 1), draw((24, 32), 2)
    x = x * 10 ** (spread * draw((24, 1), 3)).astype(np.float32)
    x[3] = 0.0
    grad = grad * 10 ** (spread * draw((1, 32), 4)).astype(np.float32)
    product = partial(float8_dense, gradient_dtype=dtype)
    y, pull = jax.vjp(product, jnp.asarray(x), jnp.asarray(kernel))
    by_x, by_kernel = pull(jnp.asarray(grad))
    results = zip((y, by_x, by_kernel), emulated(x, kernel, grad, dtype), strict=True)
    for number, (a, e) in enumerate(results):
        for row, (mine, theirs) in enumerate(zip(np.asarray(a), e, strict=True)):
            if theirs.any():
                assert_close(mine, theirs, 1e-6, f"result {number}, row {row}")
    assert not np.asarray(y)[3].any(), "zeros stay zeros"
    error = assert_close(y, x.astype(np.float64) @ kernel, 0.05, "without rounding")
    assert error > 1e-3, "nothing was rounded"


@pytest.mark.parametrize(
    ("largest", "scaled"),
    [(448.0, 448.0), (449.0, 224.0), (1.0, 256.0), (2.0**-125, 2.0), (3e38, None)],
)
def test_scales_use_the_whole_range(largest: float, scaled: float | None) -> None:
    x = jnp.asarray([[largest, -largest / 2, 0.0]], jnp.float32)
    values, scale = quantize(x, 1)
    assert np.log2(float(scale[0, 0])) % 1 == 0, "the scale is a power of two"
    if scaled is not None:
        assert abs(float(values[0, 0])) == pytest.approx(scaled, rel=0.07)
    back = np.asarray(values, np.float64) * np.asarray(scale, np.float64)
    assert_close(back, np.asarray(x, np.float64), 0.04, f"largest {largest:g}")


def test_what_is_not_finite_stays_seen() -> None:
    x = jnp.asarray([[1.0, jnp.inf], [1.0, jnp.nan], [1.0, 2.0]])
    y = float8_dense(x, jnp.ones((2, 3)))
    assert np.isnan(y[:2]).all()
    assert np.isfinite(y[2]).all()


def test_sixteen_bits_round_to_the_same_values() -> None:
    """bfloat16 factors are rounded directly; sums are in float32."""
    x, kernel = (
        jnp.asarray(draw(shape, seed), jnp.bfloat16)
        for seed, shape in enumerate([(24, 640), (640, 32)])
    )
    wide = float8_dense(x.astype(jnp.float32), kernel.astype(jnp.float32))
    narrow = float8_dense(x, kernel, dtype=jnp.float32)
    np.testing.assert_array_equal(narrow, wide)
    assert float8_dense(x, kernel).dtype == jnp.bfloat16


def pair(x, up, down, axis=None):
    """Two layers split by tensor parallelism: by columns, then by rows."""
    made = jax.nn.gelu(float8_dense(x, up, output_axis=axis))
    return psum(float8_dense(made, down, summed=axis), axis)


@pytest.mark.slow(but=["1-3"])
@pytest.mark.parametrize(("tp", "domain"), [(2, 1), (1, 3), (2, 4), (8, 1)])
def test_every_mesh_rounds_alike(tp: int, domain: int) -> None:
    with jax.enable_x64(True):
        x, up, down = (
            draw(shape, seed, np.float64)
            for seed, shape in enumerate([(2, 12, 48), (48, 64), (64, 16)])
        )
        expected, expected_grads = jax_values(pair, x, up, down)
        mesh = make_mesh(tp=tp, domain=domain)
        tensor, rows = (name if name in mesh.shape else None for name in (TP, DOMAIN))
        split = jax.shard_map(
            partial(pair, axis=tensor),
            mesh=mesh,
            in_specs=(P(None, rows), P(None, tensor), P(tensor)),
            out_specs=P(None, rows),
        )
        actual, grads = jax_values(split, x, up, down)
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-12)
    for name, a, e in zip(("x", "up", "down"), grads, expected_grads, strict=True):
        assert_close(a, e, 1e-14, f"tp {tp}, domain {domain}: gradient of {name}")


@pytest.mark.parametrize(
    ("dtype", "name"), [(NARROW, "f8E4M3FN"), (WIDE, "f8E5M2")], ids=["e4m3", "e5m2"]
)
def test_accelerators_are_given_float8_factors(dtype: Any, name: str) -> None:
    """Two products have float8 factors; the weight gradient is in bfloat16."""
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in [(4, 6, 32), (32, 3, 16)]]

    def grads(x, kernel):
        product = partial(float8_dense, gradient_dtype=dtype)
        return jax.grad(lambda *a: jnp.sum(product(*a) ** 2), (0, 1))(x, kernel)

    lowered = jax.jit(grads).trace(*shapes).lower(lowering_platforms=("cuda",))
    products = re.findall(r"dot_general.*: \((.*)\) ->", lowered.as_text())
    factors = [re.findall(r"x([a-z]\w*)>", product) for product in products]
    forward, backward = ["f8E4M3FN"] * 2, [name, "f8E4M3FN"]
    assert sorted(factors) == sorted([["bf16", "bf16"], forward, backward])
