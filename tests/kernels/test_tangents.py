"""Forward-mode and second derivatives of all operations that have kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accelerator.cases import cases
from credit_jax import ops
from credit_jax.kernels.cpu import conv
from credit_jax.parallel.rows.take import take_static
from tests.support import assert_close
from tests.support.gradients import draw


def _conv(stride: int, padding: int) -> tuple[Any, Any]:
    pads = {"stride": (stride, stride), "padding": ((padding, padding),) * 2}
    return partial(conv.conv2d, **pads), partial(ops.conv2d, **pads)


REVERSED_PAIRS = [(row + 3) % 24 ^ 1 for row in range(24)]
# (function, definition, shapes of the arrays); those of GPUs run in the interpreter.
CASES: dict[str, Any] = {
    **{c.name: (c.interpreted, c.definition, c.shapes) for c in cases("small")},
    "CPU, padded": (*_conv(1, 1), ((1, 8, 9, 2), (3, 3, 2, 4))),
    "CPU, tap by tap": (*_conv(1, 1), ((1, 2, 3, 6), (3, 3, 6, 4))),
    "CPU, strided": (*_conv(2, 0), ((1, 8, 12, 2), (4, 4, 2, 3))),
    "CPU, by Fourier transforms": (*_conv(2, 0), ((1, 32, 96, 2), (32, 32, 2, 3))),
    "rows by a gather": (
        lambda x: take_static(x, REVERSED_PAIRS, 0),
        lambda x: x[np.array(REVERSED_PAIRS)],
        ((24, 3),),
    ),
}
EVERY_TIME = [
    *(name for name in CASES if name.startswith(("CPU", "rows", "conv2d"))),
    *("window_attention, long 2, 10 x 20 x 5", "layer_norm, 400 x 96"),
]


def _derivatives(function: Any, arrays: Any, tangents: Any) -> Any:
    """Returns (J v, J' J v, H v), the last of the sum of squares of the results."""

    def loss(arrays: Any) -> Any:
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(function(*arrays)))

    _, moved = jax.jvp(function, arrays, tangents)
    _, pull = jax.vjp(function, *arrays)
    curved = jax.jvp(jax.grad(loss), (arrays,), (tangents,))[1]
    return moved, pull(moved), curved


@pytest.mark.slow(but=EVERY_TIME)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_definition(name: str) -> None:
    function, definition, shapes = CASES[name]
    arrays, tangents = (
        tuple(jnp.asarray(draw(shape, seed + k)) for k, shape in enumerate(shapes))
        for seed in (0, 10)
    )
    run = jax.jit(_derivatives, static_argnums=0)
    actual, expected = (run(f, arrays, tangents) for f in (function, definition))
    for what, own, theirs in zip(
        ("J v", "J' J v", "H v"), actual, expected, strict=True
    ):
        joined = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
            for tree in (own, theirs)
        )
        assert_close(*joined, 3e-6, f"{name}: {what}")
    moved, pulled, _ = (
        [np.float64(leaf).ravel() for leaf in jax.tree.leaves(tree)] for tree in actual
    )
    forward = sum(own @ own for own in moved)
    reverse = sum(
        np.float64(t).ravel() @ own for t, own in zip(tangents, pulled, strict=True)
    )
    assert forward == pytest.approx(reverse, rel=1e-6), "<J v, J v> and <v, J' J v>"
