"""Fused window attention in interpret mode against the plain definition."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.kernels.gpu import window_attention as fused
from credit_jax.models.flops import flops_of
from credit_jax.ops import attend, attention_logits
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import (
    group_layout,
    merge,
    partition,
    window_grid,
    window_layout,
)
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.support import make_mesh
from tests.support.errors import relative_error
from tests.support.gradients import assert_same, draw, jax_values

# kind, window, batch, rows, columns, heads, channels of a head. Tiles: 16 windows (the
# last is not full), 4, 2 with padding, 1 with padding.
CASES: dict[str, tuple[Any, ...]] = {
    "short, 2 x 2": ("short", 2, 2, 6, 14, 2, 8),
    "long, 2 x 2": ("long", 2, 2, 6, 14, 2, 8),
    "long, 4 x 4": ("long", 4, 2, 8, 12, 3, 32),
    "short, 5 x 5": ("short", 5, 1, 10, 15, 1, 20),
    "long, 10 x 10": ("long", 10, 1, 20, 20, 2, 32),
    "short, strips": ("short", 5, 2, 30, 5, 2, 8),
    "long, strips": ("long", 2, 2, 28, 5, 2, 8),
}
# 20 rows of 20 points on 3 shards, windows of 5 x 5 and of 2 x 2.
STRIPS = dict(
    zip(
        ("short", "long"),
        Windows(20, 20, 5, 2).layouts(block_layout(20, 3, "domain")),
        strict=True,
    )
)


def _field(data: jax.Array, name: str) -> Field:
    if name.endswith("strips"):
        return Field(data, STRIPS[name.split(",")[0]])
    return Field(data, block_layout(data.shape[1], 1, None))


def _both(name: str) -> tuple[Any, Any]:
    """Returns the kernel and the plain definition as functions of qkv and the bias."""
    kind, window, *_ = CASES[name]

    def kernel(qkv: Any, bias: Any) -> Any:
        grid = window_grid(_field(qkv[..., 0, 0, :], name), kind, window)
        return fused.window_attention(qkv, bias, grid, interpret=True)

    def plain(qkv: Any, bias: Any) -> Any:
        *points, _, heads, channels = qkv.shape
        field = _field(qkv.reshape(*points, -1), name)
        parts = partition(field, kind, window)
        parts = parts.reshape(*parts.shape[:3], 3, heads, channels)
        q, k, v = jnp.transpose(parts, (3, 0, 1, 4, 2, 5))
        wide = jnp.promote_types(qkv.dtype, jnp.float32)
        logits = attention_logits(q * channels**-0.5, k, dtype=wide)
        logits = logits + bias.astype(wide)[None, None, None]
        mixed = attend(jax.nn.softmax(logits, -1).astype(v.dtype), v)
        flat = jnp.swapaxes(mixed, 2, 3).reshape(*parts.shape[:3], -1)
        return merge(flat, field, kind, window).data.reshape(*points, heads, channels)

    return kernel, plain


def _arrays(name: str, dtype: Any) -> tuple[Any, Any]:
    _, window, batch, rows, columns, heads, channels = CASES[name]
    qkv = draw((batch, rows, columns, 3, heads, channels), 0, dtype)
    return qkv, draw((window**2, window**2), 1, dtype)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_windows_of_strips_are_those_of_partition(kind: Any) -> None:
    """20 rows on 3 shards: windows of 5 x 5 and of 2 x 2."""
    layout, window = STRIPS[kind], {"short": 5, "long": 2}[kind]
    assert layout.strips == 4
    shape = (2, layout.length, 5, 1)
    field = Field(jnp.arange(float(math.prod(shape))).reshape(shape), layout)
    _check_windows(field, kind, window)


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("dim", [1, 2])
def test_windows_of_a_shard_are_those_of_partition(kind: Any, dim: int) -> None:
    """Windows are in groups along the split dim, and in order along the other."""
    layout = block_layout(24, 3, "domain", dim)
    whole = {"short": window_layout, "long": group_layout}[kind](layout, 24, 4)
    shape = (2, 8, 12, 1) if dim == 1 else (2, 12, 8, 1)
    field = Field(jnp.arange(float(math.prod(shape))).reshape(shape), whole)
    _check_windows(field, kind, 4)


def _check_windows(field: Field, kind: Any, window: int) -> None:
    expected = partition(field, kind, window)[..., 0]
    assert np.array_equal(
        merge(expected[..., None], field, kind, window).data, field.data
    )
    qkv = field.like(field.data[..., None, None])
    grid = window_grid(qkv, kind, window)
    number, token = np.indices((grid.windows, grid.tokens))
    points = grid.locate(jnp.asarray(number), jnp.asarray(token))
    assert np.array_equal(points, expected.reshape(grid.windows, grid.tokens))


def test_types_hold_where_fields_and_heads_are_split() -> None:
    """Forward and gradient are traced under `shard_map`, as on a mesh of GPUs."""
    mesh = make_mesh(dp=2, tp=2, domain=2)
    kernel, _ = _both("short, 2 x 2")

    def gradient(qkv: Any, bias: Any) -> Any:
        value, pull = jax.vjp(kernel, qkv, bias)
        return pull(value)

    split = PartitionSpec("dp_shard", "domain", None, None, "tp")
    body = jax.shard_map(
        gradient,
        mesh=mesh,
        in_specs=(split, PartitionSpec()),
        out_specs=(split, PartitionSpec()),
    )
    qkv, bias = (jnp.asarray(a) for a in _arrays("short, 2 x 2", np.float32))
    qkv = jnp.concatenate([qkv, qkv], 1)
    out = jax.eval_shape(body, qkv, bias)
    assert [x.shape for x in out] == [qkv.shape, bias.shape]


@pytest.mark.slow(but=["long, 2 x 2", "short, 5 x 5", "long, strips"])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_plain_definition(name: str) -> None:
    kernel, plain = (jax_values(f, *_arrays(name, np.float32)) for f in _both(name))
    assert_same(kernel, plain, name, value=1e-6, gradient=1e-6)


def test_float64_is_exact() -> None:
    name = "long, 4 x 4"
    with jax.enable_x64(True):
        kernel, plain = (jax_values(f, *_arrays(name, np.float64)) for f in _both(name))
    assert kernel[0].dtype == np.float64
    assert_same(kernel, plain, name, value=1e-14, gradient=1e-14)


@pytest.mark.slow(but=["short, 5 x 5"])
@pytest.mark.parametrize("name", ["short, 5 x 5", "long, 10 x 10"])
def test_bfloat16_is_as_near_to_float32_as_the_plain_definition(name: str) -> None:
    kernel, plain = _both(name)
    narrow = tuple(
        np.asarray(jnp.asarray(a, jnp.bfloat16)) for a in _arrays(name, np.float32)
    )
    exact = jax_values(plain, *(np.asarray(a, np.float32) for a in narrow))
    errors = []
    for function in (kernel, plain):
        value, gradients = jax_values(function, *narrow)
        pairs = zip((value, *gradients), (exact[0], *exact[1]), strict=True)
        errors.append([relative_error(np.asarray(a, np.float32), e) for a, e in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.01 * theirs, f"{name}: {errors[0]}, plain {errors[1]}"


def test_vmap_remat_and_scan() -> None:
    kernel, plain = _both("short, 2 x 2")
    qkv, bias = _arrays("short, 2 x 2", np.float32)
    stacked = np.stack([bias, 2 * bias])

    def loss(function: Any) -> Any:
        def turn(x: Any, bias: Any) -> Any:
            one = lambda sample: function(sample[None], bias)[0]  # noqa: E731
            out = jax.vmap(one)(x)
            return x + out[:, :, :, None], None

        def run(qkv: Any, biases: Any) -> Any:
            return jax.lax.scan(jax.checkpoint(turn), qkv, biases)[0]

        return run

    ours, plain = (jax_values(loss(f), qkv, stacked) for f in (kernel, plain))
    assert_same(ours, plain, "vmap, remat and scan", gradient=1e-6)


def test_a_kernel_tells_its_operations() -> None:
    kernel, plain = _both("long, 10 x 10")
    arrays = _arrays("long, 10 x 10", np.float32)

    def products(function: Any) -> float:
        both = jax.value_and_grad(lambda a, b: function(a, b).sum(), (0, 1))
        return flops_of(jax.make_jaxpr(both)(*arrays)) / (2 * 4 * 100**2 * 2 * 32)

    assert products(plain) == 6
    # The backward pass makes the logits again, and for the gradient of the bias of
    # windows with more than 64 tokens those and the gradient of the weights once more.
    assert products(kernel) == 7 + 2
