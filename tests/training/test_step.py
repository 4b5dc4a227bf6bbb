"""Steps, rollouts, and gradients through whole forecasts."""

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
from credit_jax.nn.parameters import BATCH_STATS, wide_statistics
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import TrainState, init_state
from credit_jax.training.step import make_eval_step, make_train_step
from credit_jax.transforms import Backprop, Rollout, build_pipeline, with_gradients
from tests.support import assert_close, assert_trees_close
from tests.training.tiny import Tiny
from tests.training.toy_runs import (
    BATCH,
    CONFIG,
    HEIGHT,
    MODEL_DEF,
    WIDTH,
    mse,
    toy_batches,
    toy_model,
)

EIGHT = {"dp": 2, "tp": 2, "domain": 2}
MESHES = {"one": {}, "fsdp4": {"dp": 4}, "2x2x2": EIGHT}
FROZEN = "dense/up"
FREEZING = replace(MODEL_DEF, frozen=frozenset({FROZEN}))


def _made(mesh: str, model_def: ModelDef = MODEL_DEF) -> tuple[ParallelModel, Any, Any]:
    """Returns the tiny model, its step with all options, and a fresh state."""
    model = toy_model(model_def=model_def, **MESHES[mesh])
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    rate = optax.linear_schedule(1e-2, 1e-3, 10)
    step = make_train_step(model, optimizer, mse, schedule=rate, ema_decay=0.9)
    return model, step, init_state(model, optimizer, jax.random.key(0), ema=True)


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", ["one", "2x2x2"])
def test_steps_in_a_users_jit(mesh: str) -> None:
    """Two steps equal two calls, a scan them, and an evaluation itself.

    The scan is on one device, as XLA on CPU cannot run collectives in loops safely.
    """
    model, step, state = _made(mesh)
    batches = toy_batches(model, 2)

    def two_calls(state: TrainState, batches: Any) -> Any:
        state, first = step(state, batches[0])
        state, second = step(state, batches[1])
        return state, jnp.stack([first["loss"], second["loss"]])

    def scanned(state: TrainState, batches: Any) -> Any:
        def body(state: TrainState, batch: Any) -> Any:
            state, info = step(state, batch)
            return state, info["loss"]

        return jax.lax.scan(
            body, state, jax.tree.map(lambda *x: jnp.stack(x), *batches)
        )

    expected, losses = two_calls(state, batches)
    assert int(state.micro_step) == 0, "the state that is passed in stays"
    for function in (two_calls, *([scanned] if mesh == "one" else [])):
        actual, found = jax.jit(function)(state, batches)
        assert int(actual.update_step) == int(actual.micro_step) == 2
        assert_close(found, losses, 1e-6, "losses")
        assert_trees_close(actual.params, expected.params, 1e-6, "parameters")
        assert_trees_close(actual.ema, expected.ema, 1e-6, "average")
    evaluate = make_eval_step(model, lambda *args: {"loss": mse(*args)})
    arguments = (
        state.params,
        state.model_state,
        {k: x[0] for k, x in batches[0].items()},
    )
    twice = jax.jit(lambda *args: 2 * evaluate(*args)["loss"])(*arguments)
    alone = evaluate(*arguments)["loss"]
    assert np.isclose(float(twice), 2 * float(alone), rtol=1e-6)


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", MESHES)
def test_what_is_not_frozen_has_the_gradient_of_one_device(mesh: str) -> None:
    """The norm that clips is that of these gradients alone."""

    def gradient(mesh: str) -> tuple[Any, Any]:
        model, optimizer = (
            toy_model(model_def=FREEZING, **MESHES[mesh]),
            optax.trace(0.0),
        )
        step = make_train_step(model, optimizer, mse)
        state = init_state(model, optimizer, jax.random.key(0))
        state, info = step(state, toy_batches(model, 1)[0])
        return jax.device_get((info["grad_norm"], state.opt_state.trace))

    norm, grads = gradient(mesh)
    one_norm, one = gradient("one")
    assert grads.keys() == MODEL_DEF.param_specs.keys() - {FROZEN}
    assert_trees_close(grads, one, 1e-6, "gradients")
    assert_close(norm, one_norm, 1e-6, "norm")
    squares = sum(float(np.sum(np.square(g, dtype="d"))) for g in grads.values())
    assert_close(norm, np.sqrt(squares), 1e-6, "norm of the trained gradients")


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", MESHES)
def test_frozen_parameters_keep_their_bits(mesh: str) -> None:
    """And what the forward pass takes of them: W divided by the same sigma."""
    model, step, first = _made(mesh, FREEZING)
    state = first
    for batch in toy_batches(model, 2):
        state, _ = step(state, batch)
    states = first, state
    fused = [model.fuse_spectral_norm(s.params, s.model_state)[0] for s in states]
    vectors = [jax.device_get(s.model_state["spectral_norm"]) for s in states]
    for before, after in ((first.params, state.params), fused):
        assert np.array_equal(before[FROZEN], after[FROZEN])
        assert not np.array_equal(before["dense/down"], after["dense/down"])
    for side in "uv":
        assert np.array_equal(vectors[0][FROZEN][side], vectors[1][FROZEN][side])
        assert not np.array_equal(*(v["dense/down"][side] for v in vectors))
    assert FROZEN not in optax.tree.get(state.opt_state, "mu")
    assert FROZEN not in state.stored_ema
    assert np.array_equal(state.ema[FROZEN], state.params[FROZEN])


def test_frozen_parameters_take_no_memory_beside_their_own() -> None:
    """The compiled step has no moments, average and gradient of them."""
    sizes = []
    for model_def in (MODEL_DEF, FREEZING):
        model, step, state = _made("one", model_def)
        compiled = step.lower(state, toy_batches(model, 1)[0]).compile()
        memory = compiled.memory_analysis()
        sizes.append((memory.argument_size_in_bytes, memory.output_size_in_bytes))
    less, less_updated = (whole - part for whole, part in zip(*sizes, strict=True))
    spec = MODEL_DEF.param_specs[FROZEN]
    moments_and_average = 3 * 4 * spec.size
    # The stored v is read, which a power iteration computes anew.
    assert less == moments_and_average - 4 * spec.shape[0]
    assert less_updated >= moments_and_average


# `trainer.backprop`: gradients of whole forecasts, weights of steps, and memory.


VALUE, GRADIENT = 1e-6, 2e-6
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


@pytest.mark.slow(but=[f"full-{EIGHT}", f"truncated-{EIGHT}"])
@pytest.mark.parametrize("degrees", [{"domain": 2}, EIGHT], ids=str)
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
    for degrees in ({}, EIGHT):
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


def test_averages_of_statistics_begin_with_copies():
    """The loop donates its state, which may have an array once."""
    mean = jnp.ones(3)
    average = wide_statistics({BATCH_STATS: {"norm": {"mean": mean}}})["norm"]["mean"]
    assert average.unsafe_buffer_pointer() != mean.unsafe_buffer_pointer()
