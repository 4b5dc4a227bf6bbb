"""Kernels for GPUs beside the definitions."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compiled_step import equations
from credit_jax import ops
from credit_jax.kernels import kernel_notes
from credit_jax.kernels.gpu import dense, norm
from credit_jax.ops.dense import dense as plain
from tests.support.errors import relative_error
from tests.support.gradients import assert_same, draw, jax_values

GPU = SimpleNamespace(platform="gpu")
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
    assert kernel_notes([GPU]) == []


@pytest.mark.parametrize("name", ["norm", "window_attention"])
def test_kernels_take_the_backend_from_one_file(name: str) -> None:
    module = __import__(f"credit_jax.kernels.gpu.{name}", fromlist=["_"])
    assert not [key for key in vars(module) if key in ("pl", "triton", "pltriton")]


# Partial blocks of rows, channels not a power of two, several iterations per program.
CASES = {"ragged": (2, 350, 40), "many rows": (1, 1090, 256)}
PROGRAMS = 16


def _plain(x: Any, scale: Any, bias: Any) -> Any:
    return jnp.stack([ops.layer_norm(x, scale, bias), 2 * x])


def _kernel(x: Any, scale: Any, bias: Any) -> Any:
    normal, skip = norm.layer_norm_and_skip(x, scale, bias, interpret=True)
    return jnp.stack([normal, 2 * skip])


def _arrays(name: str) -> list[Any]:
    *rows, channels = CASES[name]
    x = 3 * draw((*rows, channels)) + 1
    return [x, draw((channels,), 1), draw((channels,), 2)]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_plain_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "_PROGRAMS", PROGRAMS)
    kernel, plain = (jax_values(f, *_arrays(name)) for f in (_kernel, _plain))
    assert_same(kernel, plain, name, value=1e-6, gradient=1e-6)


def test_bfloat16_is_as_near_to_float32_as_the_plain_definition() -> None:
    narrow = [np.asarray(jnp.asarray(a, jnp.bfloat16)) for a in _arrays("ragged")]
    value, gradients = jax_values(_plain, *(np.asarray(a, np.float32) for a in narrow))
    errors = []
    for function in (_kernel, _plain):
        ours, by_array = jax_values(function, *narrow)
        pairs = zip((ours, *by_array), (value, *gradients), strict=True)
        errors.append([relative_error(np.asarray(a, np.float32), e) for a, e in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.01 * theirs, f"{errors[0]}, plain {errors[1]}"


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_value_and_gradients_are_those_of_the_plain_definition_dense(
    dtype: Any,
) -> None:
    x, kernel = draw((2, 2100, 24)), draw((24, 3, 4), 1)
    ours, theirs = (
        jax_values(partial(f, dtype=dtype), x, kernel) for f in (dense.dense, plain)
    )
    assert_same(ours, theirs, "dense", gradient=1e-6)


@pytest.mark.usefixtures("groups")
def test_rows_are_added_in_float32() -> None:
    """A 16-bit sum of 8192 ones stops at 256."""
    ones = jnp.ones((8192, 4), jnp.bfloat16)
    gradient = jax.jit(dense.kernel_gradient)(ones, ones)
    assert gradient.dtype == jnp.float32
    assert np.all(gradient == 8192)


@pytest.mark.parametrize("rows", [288_000, 9000, 4099])
def test_groups_divide_the_rows(rows: int) -> None:
    x, cotangent = (jax.ShapeDtypeStruct((rows, n), jnp.bfloat16) for n in (128, 384))
    gradient = jax.eval_shape(dense.kernel_gradient, x, cotangent)
    assert (gradient.shape, gradient.dtype) == ((128, 384), jnp.float32)


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
    ("rows", "channels", "out", "groups"),
    [
        # A few tiles: enough groups that each multiprocessor has a tile.
        (288_000, 128, 384, 44),
        (18_000, 512, 2048, 2),
        # The tiles fill a GPU.
        (4500, 1024, 4096, 1),
        # On an eighth of the rows sums of groups would move more than the factors.
        (2250, 512, 2048, 1),
        (7, 8, 8, 1),
    ],
)
def test_groups_of_wxformer(rows: int, channels: int, out: int, groups: int) -> None:
    assert dense.num_groups(rows, channels, out, itemsize=2) == groups


def test_candidates_alone_are_taken() -> None:
    divisors = [g for g in range(1, 100) if 288_000 % g == 0]
    found = dense.num_groups(288_000, 128, 384, itemsize=2, candidates=divisors)
    assert found == 40
