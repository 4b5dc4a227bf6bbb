"""`trainer.backprop`: gradients of whole forecasts, weights of steps, and memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.placement import place_batch
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from credit_jax.transforms import Backprop, Rollout, build_pipeline, with_gradients
from tests.support import assert_close, assert_trees_close
from tests.training.tiny import Tiny
from tests.training.toy_runs import BATCH, CONFIG, HEIGHT, WIDTH, mse, toy_model

VALUE, GRADIENT = 1e-6, 2e-6
MESH = {"dp": 2, "tp": 2, "domain": 2}
PLAIN = ModelDef(CONFIG.model_copy(update={"use_spectral_norm": False}), Tiny)
PREDICTED = {"T": slice(0, 2), "U": slice(2, 4), "SP": slice(4, 5)}
INPUT = {
    **{f"S/prognostic/2d/{name}": place for name, place in PREDICTED.items()},
    "S/static/2d/LSM": slice(5, 6),
    "S/dynamic_forcing/2d/tsi": slice(6, 7),
}
TARGET = {
    **{f"S/prognostic/2d/{name}": place for name, place in PREDICTED.items()},
    "S/diagnostic/2d/TP": slice(5, 6),
}
BLOCKS = (
    PreblocksConfig.model_validate({"per_step": {"concat": {"type": "concat"}}}),
    PostblocksConfig.model_validate({"per_step": {"named": {"type": "reconstruct"}}}),
)


def rollout_of(num_steps: int, num_members: int = 1, **settings: Any) -> Rollout:
    pipeline = with_gradients(build_pipeline(*BLOCKS))
    return replace(
        Rollout.of(pipeline, INPUT, TARGET, num_steps),
        num_members=num_members,
        backprop=Backprop(**settings),
    )


@cache
def batch_of(num_steps: int) -> dict[str, Any]:
    """Returns one micro-batch, on the host."""
    rng = np.random.default_rng(0)

    def field(channels: int, times: int) -> np.ndarray:
        shape = (1, BATCH, channels, times, HEIGHT, WIDTH)
        return rng.normal(size=shape).astype(np.float32)

    x = field(7, 1)
    return {
        "x": x,
        "y": field(6, num_steps),
        "static": {"S": {"S/static/2d/LSM": x[:, :, 5:6]}},
        "forcing": {"S": {"S/dynamic_forcing/2d/tsi": field(1, num_steps - 1)}},
    }


def gradient_of(num_steps: int, rollout: Rollout, **degrees: int) -> tuple[Any, Any]:
    """Returns the loss and gradient of a training step."""
    model = toy_model(model_def=PLAIN, **degrees)
    step = make_train_step(model, optax.trace(0.0), mse, rollout=rollout)
    state = init_state(model, optax.trace(0.0), jax.random.key(0))
    new, info = step(state, place_batch(batch_of(num_steps), model.mesh))
    grads = new.opt_state.trace
    return float(info["loss"][0]), jax.device_get(grads)


@cache
def expected(num_steps: int, counts: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns the same by `jax.grad` of an explicit forecast loop, on one device."""
    model: ParallelModel = toy_model(model_def=PLAIN)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), batch_of(num_steps))
    params, model_state = model.init(jax.random.key(0))

    def total(params: Any) -> Any:
        x, value = batch["x"], jnp.zeros(())
        for t in range(num_steps):
            y = model.apply(params, model_state, {"x": x})
            if t + 1 in counts:
                value += jnp.mean((y - batch["y"][:, :, t : t + 1]) ** 2)
            forcing = batch["forcing"]["S"]["S/dynamic_forcing/2d/tsi"]
            later = forcing[:, :, min(t, num_steps - 2)][:, :, None]
            x = jnp.concatenate([y[:, :5], batch["x"][:, 5:6], later], axis=1)
        return value

    value, grads = jax.value_and_grad(total)(params)
    return float(value), jax.device_get(grads)


@pytest.mark.slow(but=["(1, 3)"])
@pytest.mark.parametrize("counts", [(1, 2, 3), (3,), (1, 3)], ids=str)
def test_is_that_of_the_forecast_written_out(counts: tuple[int, ...]) -> None:
    settings = {"mode": "full", "steps": counts}
    value, grads = gradient_of(3, rollout_of(3, **settings))
    loss, gradient = expected(3, counts)
    assert_close(value, loss, VALUE, f"loss of steps {counts}")
    assert_trees_close(grads, gradient, GRADIENT, f"gradient of steps {counts}")


@pytest.mark.slow(but=[f"full-{MESH}", f"truncated-{MESH}"])
@pytest.mark.parametrize("degrees", [{"domain": 2}, MESH], ids=str)
@pytest.mark.parametrize("backprop", ["full", "truncated"])
def test_is_the_same_on_meshes(degrees: dict[str, int], backprop: str) -> None:
    rollout = rollout_of(3, mode=backprop)
    loss, gradient = gradient_of(3, rollout)
    value, grads = gradient_of(3, rollout, **degrees)
    what = f"{backprop}, {degrees}"
    assert_close(value, loss, VALUE, f"{what}: loss")
    assert_trees_close(grads, gradient, GRADIENT, f"{what}: gradient")


def test_truncated_is_another_gradient() -> None:
    """It omits the gradient of a step's loss through earlier steps."""
    full = gradient_of(2, rollout_of(2, mode="full", steps=(2,)))[1]
    truncated = gradient_of(2, rollout_of(2, steps=(2,)))[1]
    path = "dense/up"
    assert np.abs(full[path] - truncated[path]).max() > 1e-3


@pytest.mark.slow(but=["truncated"])
@pytest.mark.parametrize("backprop", ["truncated", "full"])
def test_weights_of_steps(backprop: str) -> None:
    """They are weighted sums of those of single steps, on a mesh, too."""
    weights = (0.5, 0.0, 2.0)
    alone = [
        gradient_of(3, rollout_of(3, mode=backprop, steps=(step,))) for step in (1, 3)
    ]
    loss = 0.5 * alone[0][0] + 2.0 * alone[1][0]
    gradient = jax.tree.map(lambda a, b: 0.5 * a + 2.0 * b, *(g for _, g in alone))
    for degrees in ({}, MESH):
        rollout = rollout_of(3, mode=backprop, weights=weights)
        value, grads = gradient_of(3, rollout, **degrees)
        assert_close(value, loss, VALUE, f"{backprop}, {degrees}: loss")
        assert_trees_close(grads, gradient, GRADIENT, f"{backprop}, {degrees}")


def test_a_weight_for_each_step() -> None:
    with pytest.raises(ValueError, match=r"2 weights of steps, \[1.0, 2.0\], expected"):
        rollout_of(3, weights=(1.0, 2.0))


def test_memory_grows_by_what_is_fed_back() -> None:
    """Each further step saves its input, and no activations of the model."""
    model = toy_model(model_def=PLAIN)
    state = init_state(model, optax.trace(0.0), jax.random.key(0))
    used = {}
    for steps in (4, 8, 16):
        rollout = rollout_of(steps, mode="full")
        step = make_train_step(model, optax.trace(0.0), mse, rollout=rollout)
        batch = place_batch(batch_of(steps), model.mesh)
        memory = step.lower(state, batch).compile().memory_analysis()
        used[steps] = memory.temp_size_in_bytes
    points = BATCH * HEIGHT * WIDTH * np.dtype(np.float32).itemsize
    each = [(used[n] - used[n // 2]) / (n // 2) / points for n in (8, 16)]
    inside = CONFIG.hidden
    print(f"temporary memory {used}; channels a further step: {each}; inside: {inside}")
    assert max(each) < inside / 4
