"""Convolutions whose channels fill the tiles of tensor cores."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import ops
from credit_jax.kernels.gpu import conv
from credit_jax.ops.compensated import relative_error
from tests.support.gradients import assert_same, draw, jax_values

# Size of the field, kernel, stride and padding.
CASES = {
    "large kernel, rows and columns left over": ((33, 41, 10), (16, 16, 4), 2, 7),
    "points that no kernel reaches": ((41, 30, 8), (9, 9, 8), 3, 0),
    "stride 1, odd channels": ((20, 31, 7), (3, 3, 5), 1, 1),
    "enough channels": ((12, 16, 9), (2, 2, 64), 2, 0),
    "many channels": ((8, 11, 70), (3, 3, 67), 1, 1),
    "more padding than the stride": ((34, 42, 6), (12, 12, 4), 2, 5),
}


@pytest.fixture(autouse=True)
def fields_fill_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of one tile of one point."""
    monkeypatch.setattr(conv, "TILES", 1)
    monkeypatch.setattr(conv, "TILE", 16)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_definition(name: str) -> None:
    size, (*taps, out), stride, padding = CASES[name]
    x, kernel = draw((2, *size)), draw((*taps, size[-1], out), 1)
    options: Any = {"stride": (stride,) * 2, "padding": ((padding, padding + 1),) * 2}
    counts = conv.best_counts(kernel.shape, options["stride"], 2 * 400)
    assert (counts == (1, 1)) == (name in ("enough channels", "many channels"))
    ours, theirs = (
        jax_values(partial(f, **options), x, kernel) for f in (conv.conv2d, ops.conv2d)
    )
    assert_same(ours, theirs, name, gradient=1e-6)


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
    x, kernel = draw((1, 64, 128, 8)), draw((16, 16, 8, 16), 1)
    cotangent = draw((1, 32, 64, 16), 2)
    options: Any = {"stride": (2, 2), "padding": ((7, 7), (7, 7))}

    def gradient(f: Any, dtype: Any) -> Any:
        arrays = [jnp.asarray(a, dtype) for a in (x, kernel, cotangent)]
        pull = jax.vjp(lambda kernel: f(arrays[0], kernel, **options), arrays[1])[1]
        return np.asarray(pull(arrays[2])[0], np.float64)

    narrow = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float32) for a in (x, kernel)]
    x, kernel = narrow
    cotangent = np.asarray(jnp.asarray(cotangent, jnp.bfloat16), np.float32)
    truth = gradient(ops.conv2d, jnp.float32)
    ours, theirs = (
        relative_error(gradient(f, jnp.bfloat16), truth)
        for f in (conv.conv2d, ops.conv2d)
    )
    assert ours < 1.6 * theirs
