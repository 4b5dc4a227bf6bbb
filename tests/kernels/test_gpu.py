"""Kernels for GPUs in interpret mode beside the plain definitions."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks.compiled_step import equations
from credit_jax import ops
from credit_jax.kernels import kernel_notes
from credit_jax.kernels.cpu import conv as cpu_conv
from credit_jax.kernels.gpu import conv, dense, norm
from credit_jax.kernels.gpu import window_attention as fused
from credit_jax.models.flops import flops_of
from credit_jax.ops import attend, attention_logits
from credit_jax.ops.dense import dense as plain_dense
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import (
    group_layout,
    merge,
    partition,
    window_grid,
    window_layout,
)
from credit_jax.parallel.rows.layout import Field, block_layout
from credit_jax.parallel.rows.take import take_static
from tests.ops.cases import CONV as ROWS
from tests.support import assert_close, make_mesh, relative_error
from tests.support.gradients import assert_same, draw, jax_values

# Size of the field, kernel, stride and padding, and whether a kernel is used.
CONV = {
    "large kernel, rows and columns left over": ((33, 41, 10), (16, 16, 4), 2, 7),
    "points that no kernel reaches": ((41, 30, 8), (9, 9, 8), 3, 0),
    "stride 1, odd channels": ((20, 31, 7), (3, 3, 5), 1, 1),
    "enough channels": ((12, 16, 9), (2, 2, 64), 2, 0),
    "many channels": ((8, 11, 70), (3, 3, 67), 1, 1),
    "more padding than the stride": ((34, 42, 6), (12, 12, 4), 2, 5),
}
# Partial blocks of rows, channels not a power of two, several iterations per program.
NORM = {"ragged": (2, 350, 40), "many rows": (1, 1090, 256)}
# kind, window, batch, rows, columns, heads, channels of a head. Tiles: 16 windows (the
# last is not full), 4, 2 with padding, 1 with padding.
WINDOWS: dict[str, tuple[Any, ...]] = {
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


def window_pair(name: str) -> tuple[Any, Any]:
    """Returns the kernel and the plain definition as functions of qkv and the bias."""
    kind, window, *_ = WINDOWS[name]

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


def window_arrays(name: str, dtype: Any = np.float32) -> list[Any]:
    _, window, batch, rows, columns, heads, channels = WINDOWS[name]
    qkv = draw((batch, rows, columns, 3, heads, channels), 0, dtype)
    return [qkv, draw((window**2, window**2), 1, dtype)]


def _plain_norm(x: Any, scale: Any, bias: Any) -> Any:
    return jnp.stack([ops.layer_norm(x, scale, bias), 2 * x])


def _norm(x: Any, scale: Any, bias: Any) -> Any:
    normal, skip = norm.layer_norm_and_skip(x, scale, bias, interpret=True)
    return jnp.stack([normal, 2 * skip])


REVERSED_PAIRS = [(row + 3) % 24 ^ 1 for row in range(24)]


def case(name: str) -> tuple[Any, Any, list[Any]]:
    """Returns the kernel, its plain definition, and arrays of both."""
    if name in CONV:
        size, (*taps, out), stride, padding = CONV[name]
        options = {"stride": (stride,) * 2, "padding": ((padding, padding + 1),) * 2}
        arrays = [draw((2, *size)), draw((*taps, size[-1], out), 1)]
        counts = conv.best_counts(arrays[1].shape, options["stride"], 2 * 400)
        assert (counts == (1, 1)) == (name in ("enough channels", "many channels"))
        return partial(conv.conv2d, **options), partial(ops.conv2d, **options), arrays
    if name in NORM:
        *rows, channels = NORM[name]
        x = 3 * draw((*rows, channels)) + 1
        return _norm, _plain_norm, [x, draw((channels,), 1), draw((channels,), 2)]
    if name in WINDOWS:
        return *window_pair(name), window_arrays(name)
    if name == "rows":
        take = partial(take_static, index=REVERSED_PAIRS, dim=0)
        return take, lambda x: x[np.array(REVERSED_PAIRS)], [draw((24, 3))]
    if name.startswith("CPU, "):
        row = ROWS[name.removeprefix("CPU, ")]
        return row.bind(cpu_conv.conv2d), row.ours, row.arrays()
    options = {"dtype": jnp.float32} if "float32" in name else {}
    arrays = [draw((2, 2100, 24)), draw((24, 3, 4), 1)]
    return partial(dense.dense, **options), partial(plain_dense, **options), arrays


QUICK = ("long, 2 x 2", "short, 5 x 5", "long, strips")
SLOW = pytest.mark.slow
NAMES = [
    *(*CONV, *NORM, "dense", "dense, float32"),
    *(pytest.param(n, marks=() if n in QUICK else SLOW) for n in WINDOWS),
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of one tile of one point, and few programs of a norm."""
    monkeypatch.setattr(conv, "TILES", 1)
    monkeypatch.setattr(conv, "TILE", 16)
    monkeypatch.setattr(norm, "_PROGRAMS", 16)


def use_groups(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the number of groups of every gradient by a dense kernel."""
    monkeypatch.setattr(dense, "num_groups", lambda *_, **__: groups)


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradients_are_those_of_the_plain_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, plain, arrays = case(name)
    expected = jax_values(plain, *arrays)
    for groups in (1, 4) if "dense" in name else (1,):
        use_groups(groups, monkeypatch)
        assert_same(jax_values(kernel, *arrays), expected, name, gradient=1e-6)


@pytest.mark.parametrize(
    "name", ["ragged", "short, 5 x 5", pytest.param("long, 10 x 10", marks=SLOW)]
)
def test_bfloat16_is_as_near_to_float32_as_the_plain_definition(name: str) -> None:
    kernel, plain, arrays = case(name)
    narrow = [np.asarray(jnp.asarray(a, jnp.bfloat16)) for a in arrays]
    value, gradients = jax_values(plain, *(np.asarray(a, np.float32) for a in narrow))
    errors = []
    for function in (kernel, plain):
        ours, by_array = jax_values(function, *narrow)
        pairs = zip((ours, *by_array), (value, *gradients), strict=True)
        errors.append([relative_error(np.asarray(a, np.float32), e) for a, e in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.01 * theirs, f"{name}: {errors[0]}, plain {errors[1]}"


def derivatives(function: Any, arrays: Any, tangents: Any) -> Any:
    """Returns (J v, J' J v, H v), the last of the sum of squares of the results."""
    _, moved = jax.jvp(function, arrays, tangents)
    _, pull = jax.vjp(function, *arrays)
    loss = jax.grad(lambda arrays: jnp.sum(function(*arrays) ** 2))
    return moved, pull(moved), jax.jvp(loss, (arrays,), (tangents,))[1]


@pytest.mark.parametrize(
    "name",
    [
        *("ragged", "dense", "stride 1, odd channels", "long, 2 x 2", "rows"),
        *("CPU, 3x3", "CPU, few points, many channels"),
        *("CPU, stride 2, kernel 4", "CPU, stride 2, many columns"),
    ],
)
def test_tangents_and_second_derivatives_are_those_of_the_definition(name: str) -> None:
    kernel, plain, arrays = case(name)
    primals = tuple(map(jnp.asarray, arrays))
    tangents = tuple(jnp.asarray(draw(x.shape, 10 + n)) for n, x in enumerate(arrays))
    run = jax.jit(derivatives, static_argnums=0)
    actual, expected = (
        [np.concatenate([*map(np.ravel, jax.tree.leaves(tree))]) for tree in each]
        for each in (run(f, primals, tangents) for f in (kernel, plain))
    )
    for what, ours, theirs in zip(
        ("J v", "J' J v", "H v"), actual, expected, strict=True
    ):
        assert_close(ours, theirs, 3e-6, f"{name}: {what}")
    moved, pulled = map(np.float64, actual[:2])
    flat = np.concatenate([np.float64(t).ravel() for t in tangents])
    assert moved @ moved == pytest.approx(flat @ pulled, rel=1e-6), "the adjoint"


def test_float64_is_exact() -> None:
    arrays = window_arrays("long, 4 x 4", np.float64)
    with jax.enable_x64(True):
        kernel, plain = (jax_values(f, *arrays) for f in window_pair("long, 4 x 4"))
    assert kernel[0].dtype == np.float64
    assert_same(kernel, plain, "float64", value=1e-14, gradient=1e-14)


# Without the backend.


# On a mesh of GPUs, and with "gpu" chosen, all operations have their plain definitions.
WITHOUT = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None
import warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp
from types import SimpleNamespace
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from credit_jax import kernels
device = AbstractDevice("NVIDIA H100", 132, "gpu")
mesh = AbstractMesh((1,), ("dp",), axis_types=(AxisType.Auto,))
mesh = mesh.update(abstract_device=device)
x = jnp.ones((2048, 4))
with jax.sharding.use_abstract_mesh(mesh):
    assert kernels.implementation() == "xla"
    assert not kernels.fuses(x)
with kernels.use_implementation("gpu"):
    assert kernels.implementation() == "xla"
    kernels.layer_norm(x, jnp.ones(4), jnp.ones(4))
gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")
(note,) = kernels.kernel_notes([gpu])
print(note)
assert not kernels.kernel_notes([SimpleNamespace(platform="cpu")])
"""


def test_without_the_backend_operations_have_their_plain_definitions() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "has no Pallas Triton" in done.stdout
    assert "all operations have their plain definitions" in done.stdout


def test_with_the_backend_there_is_nothing_to_say() -> None:
    assert kernel_notes([SimpleNamespace(platform="gpu")]) == []


# Dense layers.


@pytest.mark.parametrize("groups", [1, 4])
def test_rows_are_added_in_float32(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 16-bit sum of 8192 ones stops at 256."""
    use_groups(groups, monkeypatch)
    ones = jnp.ones((8192, 4), jnp.bfloat16)
    gradient = jax.jit(dense.kernel_gradient)(ones, ones)
    assert gradient.dtype == jnp.float32
    assert np.all(gradient == 8192)


@pytest.mark.parametrize("rows", [64, dense.MANY_ROWS])
def test_a_wide_result_has_products_of_narrow_factors(rows: int) -> None:
    """Of a sum over devices: it is rounded, so its cotangent has few digits."""

    def loss(x: Any, kernel: Any) -> Any:
        return dense.dense(x, kernel, dtype=jnp.float32).astype(x.dtype).sum()

    arrays = [jnp.ones(shape, jnp.bfloat16) for shape in ((rows, 32), (32, 16))]
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*arrays)
    products = [
        e for e in equations(program.jaxpr) if e.primitive.name == "dot_general"
    ]
    assert len(products) == 3
    dtypes = {var.aval.dtype for e in products for var in e.invars}
    assert dtypes == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        # A few tiles: enough groups that each multiprocessor has a tile.
        ((288_000, 128, 384), 44),
        ((18_000, 512, 2048), 2),
        # The tiles fill a GPU.
        ((4500, 1024, 4096), 1),
        # On an eighth of the rows sums of groups would move more than the factors.
        ((2250, 512, 2048), 1),
        ((7, 8, 8), 1),
    ],
)
def test_groups_of_wxformer(sizes: Any, groups: int) -> None:
    assert dense.num_groups(*sizes, itemsize=2) == groups


# Convolutions whose channels fill the tiles of tensor cores.


def test_kernels_of_an_embedding_read_the_same_phases() -> None:
    x = jnp.asarray(draw((1, 40, 48, 4)))
    kernels = [jnp.asarray(draw((size, size, 4, 4), size)) for size in (8, 16)]

    def embed(x: Any) -> Any:
        return [
            conv.conv2d(x, k, stride=(2, 2), padding=((len(k) // 2 - 1,) * 2,) * 2)
            for k in kernels
        ]

    program = jax.jit(embed).lower(x).compile().as_text().partition("ENTRY")[2]
    assert program.count("conv_general_dilated") == 2
    fields = [line for line in program.splitlines() if "= f32[1,21,13,64]" in line]
    assert len(fields) == 1, program


def test_dilation_and_groups_are_those_of_the_definition() -> None:
    x, kernel = jnp.asarray(draw((1, 12, 14, 8))), jnp.asarray(draw((3, 3, 4, 6), 1))
    for options in ({"groups": 2}, {"dilation": (2, 1), "groups": 2}):
        ours, theirs = (f(x, kernel, **options) for f in (conv.conv2d, ops.conv2d))
        np.testing.assert_array_equal(ours, theirs)
    kernel = jnp.asarray(draw((3, 3, 8, 6), 1))
    ours, theirs = (f(x, kernel, dilation=(2, 2)) for f in (conv.conv2d, ops.conv2d))
    assert relative_error(ours, theirs) < 1e-6


def test_narrow_gradients_are_as_near_as_those_of_the_definition() -> None:
    """The sum over the points that are computed together is not narrow."""
    shapes = (1, 64, 128, 8), (16, 16, 8, 16), (1, 32, 64, 16)
    arrays = [jnp.asarray(draw(s, n), jnp.bfloat16) for n, s in enumerate(shapes)]

    def gradient(f: Any, dtype: Any) -> Any:
        x, kernel, cotangent = (a.astype(dtype) for a in arrays)
        options: Any = {"stride": (2, 2), "padding": ((7, 7), (7, 7))}
        pull = jax.vjp(lambda kernel: f(x, kernel, **options), kernel)[1]
        return np.asarray(pull(cotangent)[0], np.float64)

    truth = gradient(ops.conv2d, jnp.float32)
    ours, theirs = (
        relative_error(gradient(f, jnp.bfloat16), truth)
        for f in (conv.conv2d, ops.conv2d)
    )
    assert ours < 1.6 * theirs


# Windows.


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("dim", [1, 2, "strips"])
def test_windows_of_a_shard_are_those_of_partition(kind: Any, dim: Any) -> None:
    """Windows are in groups along the split dim, and in order along the other."""
    window = 4
    if dim == "strips":
        layout, window = STRIPS[kind], {"short": 5, "long": 2}[kind]
        assert layout.strips == 4
        shape = (2, layout.length, 5, 1)
    else:
        whole = {"short": window_layout, "long": group_layout}[kind]
        layout = whole(block_layout(24, 3, "domain", dim), 24, window)
        shape = (2, 8, 12, 1) if dim == 1 else (2, 12, 8, 1)
    field = Field(jnp.arange(float(math.prod(shape))).reshape(shape), layout)
    tokens = partition(field, kind, window)
    assert np.array_equal(merge(tokens, field, kind, window).data, field.data)
    grid = window_grid(field.like(field.data[..., None, None]), kind, window)
    number, token = np.indices((grid.windows, grid.tokens))
    points = grid.locate(jnp.asarray(number), jnp.asarray(token))
    assert np.array_equal(points, tokens.reshape(grid.windows, grid.tokens))


def test_types_hold_where_fields_and_heads_are_split() -> None:
    """Forward and gradient are traced under `shard_map`, as on a mesh of GPUs."""
    mesh = make_mesh(dp=2, tp=2, domain=2)
    kernel, _ = window_pair("short, 2 x 2")

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
    qkv, bias = (jnp.asarray(a) for a in window_arrays("short, 2 x 2"))
    qkv = jnp.concatenate([qkv, qkv], 1)
    out = jax.eval_shape(body, qkv, bias)
    assert [x.shape for x in out] == [qkv.shape, bias.shape]


def test_vmap_remat_and_scan() -> None:
    kernel, plain = window_pair("short, 2 x 2")
    qkv, bias = window_arrays("short, 2 x 2")
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
    kernel, plain = window_pair("long, 10 x 10")
    arrays = window_arrays("long, 10 x 10")

    def products(function: Any) -> float:
        both = jax.value_and_grad(lambda a, b: function(a, b).sum(), (0, 1))
        return flops_of(jax.make_jaxpr(both)(*arrays)) / (2 * 4 * 100**2 * 2 * 32)

    assert products(plain) == 6
    # The backward pass makes the logits again, and for the gradient of the bias of
    # windows with more than 64 tokens those and the gradient of the weights once more.
    assert products(kernel) == 7 + 2


@pytest.mark.parametrize("name", ["conv", "dense", "norm", "window_attention"])
def test_kernels_take_the_backend_from_one_file(name: str) -> None:
    module = __import__(f"credit_jax.kernels.gpu.{name}", fromlist=["_"])
    assert not [key for key in vars(module) if key in ("pl", "triton", "pltriton")]
