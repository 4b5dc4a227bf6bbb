"""A parallel model under the transformations of JAX."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.placement import place_batch
from tests.models.cases import CASES
from tests.models.parity import mesh_of
from tests.support import assert_close, assert_trees_close

# Equal numbers of input and output channels, so that outputs can be fed back.
BLOCK = {
    **CASES["wxformer earth"].block,
    "frames": 1,
    "dim": [4, 8, 16, 32],
    "dim_head": 2,
    "depth": [0, 1, 0, 0],
    "cross_embed_kernel_sizes": [[4], [2, 4], [2], [2]],
    "input_only_channels": 0,
    "output_only_channels": 0,
}
MESHES = pytest.mark.parametrize("mesh", ["one", "2x2x2"])


@cache
def _made(mesh: str) -> tuple[ParallelModel, Any, Any, Any, Any]:
    """Returns a model on a mesh, its weights and state, an input and a target."""
    model = build_parallel_model(BLOCK, mesh_of(mesh))
    params, model_state = model.init(jax.random.key(0))
    definition = model.model_def
    grid = definition.image_height, definition.image_width
    rng = np.random.default_rng(0)
    shape = (2, definition.input_channels, 1, *grid)
    arrays = {name: rng.normal(size=shape).astype("f4") for name in ("x", "y")}
    placed = place_batch(arrays, model.mesh)
    return model, params, model_state, placed["x"], placed["y"]


@pytest.mark.slow
@MESHES
def test_gradients_by_weights_and_by_the_input(mesh: str) -> None:
    """Under the user's jit they equal the eager ones and are not zero."""
    model, params, model_state, x, y = _made(mesh)

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((model.apply(params, model_state, {"x": x}) - y) ** 2)

    grad = jax.value_and_grad(loss, argnums=(0, 1))
    value, grads = jax.jit(grad)(params, x)
    eager, expected = grad(params, x)
    assert_close(value, eager, 1e-6, "loss")
    assert_trees_close(grads[0], expected[0], 1e-5, "gradient by the weights")
    assert_close(grads[1], expected[1], 1e-5, "gradient by the input")
    assert float(jnp.abs(grads[1]).max()) > 1e-6
    step = 5e-2 * grads[1] / jnp.linalg.norm(grads[1])
    moved = loss(params, x + step) - loss(params, x - step)
    assert_close(moved / 2, jnp.vdot(grads[1], step), 1e-3, "adjoint, by differences")


@pytest.mark.slow
@MESHES
def test_vmap_over_members(mesh: str) -> None:
    """`vmap` over inputs with one set of weights, and over weights."""
    model, params, model_state, x, y = _made(mesh)
    members = jnp.stack([x, y, x - y])
    together = jax.jit(jax.vmap(model.apply, in_axes=(None, None, 0)))
    outputs = together(params, model_state, {"x": members})
    alone = jnp.stack(
        [model.apply(params, model_state, {"x": member}) for member in members]
    )
    assert_close(outputs, alone, 1e-5, "members of inputs")

    keys = jax.random.split(jax.random.key(1), 2)
    weights = [model.init(key) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)
    outputs = jax.jit(jax.vmap(model.apply, in_axes=(0, 0, None)))(*stacked, {"x": x})
    alone = jnp.stack([model.apply(*both, {"x": x}) for both in weights])
    assert_close(outputs, alone, 1e-5, "members of weights")


@pytest.mark.slow(but=["2x2x2"])
@MESHES
def test_scan_over_forecast_steps(mesh: str) -> None:
    """Each iteration depends on the one before, and no other program part runs."""
    model, params, model_state, x, _ = _made(mesh)

    @jax.jit
    def forecast(x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            y = model.apply(params, model_state, {"x": x})
            return y, y

        return jax.lax.scan(step, x, None, length=3)[1]

    expected, state = [], x
    for _ in range(3):
        state = model.apply(params, model_state, {"x": state})
        expected.append(state)
    assert_close(forecast(x), jnp.stack(expected), 1e-5, "three steps")


@pytest.mark.slow
@MESHES
def test_checkpoint_gives_the_same_gradient(mesh: str) -> None:
    model, params, model_state, x, _ = _made(mesh)

    def loss(x: Any, *, remat: bool) -> Any:
        step = jax.checkpoint(model.apply) if remat else model.apply
        y = step(params, model_state, {"x": x})
        return jnp.mean(step(params, model_state, {"x": y}) ** 2)

    grad = jax.jit(jax.grad(loss), static_argnames="remat")
    assert_close(grad(x, remat=True), grad(x, remat=False), 2e-5, "two steps")


@pytest.mark.slow
def test_init_and_fuse_compose() -> None:
    model, _, _, x, _ = _made("2x2x2")

    @jax.jit
    def made(key: Any) -> Any:
        return model.fuse_spectral_norm(*model.init(key))

    params, model_state = made(jax.random.key(0))
    expected = model.apply(*model.init(jax.random.key(0)), {"x": x})
    assert_close(
        model.apply(params, model_state, {"x": x}), expected, 1e-6, "fused in a jit"
    )


@pytest.mark.slow
def test_a_whole_program_gets_options_and_cannot_be_a_part() -> None:
    model, params, model_state, x, _ = _made("one")
    program = compile_program(model.apply, model.mesh)
    expected = model.apply(params, model_state, {"x": x})
    assert_close(
        program(params, model_state, {"x": x}), expected, 1e-6, "whole program"
    )
    with pytest.raises(ValueError, match="compiler_options"):
        jax.jit(program)(params, model_state, {"x": x})
