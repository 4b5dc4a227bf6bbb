"""A training step under user transformations such as `jax.lax.scan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.models.parallel_model import ParallelModel
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import TrainState, init_state
from credit_jax.training.step import make_eval_step, make_train_step
from tests.support import assert_close, assert_trees_close
from tests.training.toy_runs import MODEL_DEF, mse, toy_batches, toy_model

MESHES = pytest.mark.parametrize(
    "degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=["one", "2x2x2"]
)


def _made(degrees: dict[str, int]) -> tuple[ParallelModel, Any, TrainState]:
    """Returns the tiny model, its step with all options, and a fresh state."""
    model = toy_model(**degrees)
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    rate = optax.linear_schedule(1e-2, 1e-3, 10)
    step = make_train_step(model, optimizer, mse, schedule=rate, ema_decay=0.9)
    return model, step, init_state(model, optimizer, jax.random.key(0), ema=True)


def _two_calls(step: Any, state: TrainState, batches: Any) -> Any:
    state, first = step(state, batches[0])
    state, second = step(state, batches[1])
    return state, jnp.stack([first["loss"], second["loss"]])


@pytest.mark.slow(but=["2x2x2"])
@MESHES
def test_two_steps_in_a_users_jit_are_two_calls(degrees: dict[str, int]) -> None:
    model, step, state = _made(degrees)
    batches = toy_batches(model, 2)
    expected = _two_calls(step, state, batches)
    assert int(state.micro_step) == 0, "the state that is passed in stays"
    both = jax.jit(lambda state, batches: _two_calls(step, state, batches))
    _assert_same(both(state, batches), expected)


def test_a_scan_over_batches() -> None:
    """On one device, as XLA on CPU cannot run collectives in loops safely."""
    model, step, state = _made({})
    batches = toy_batches(model, 2)
    expected = _two_calls(step, state, batches)
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *batches)

    @jax.jit
    def epoch(state: TrainState, batches: Any) -> Any:
        def body(state: TrainState, batch: Any) -> Any:
            state, info = step(state, batch)
            return state, info["loss"]

        return jax.lax.scan(body, state, batches)

    _assert_same(epoch(state, stacked), expected)


def _assert_same(actual: Any, expected: Any) -> None:
    (state, losses), (other, other_losses) = actual, expected
    assert int(state.update_step) == int(state.micro_step) == 2
    assert_close(losses, other_losses, 1e-6, "losses")
    assert_trees_close(state.params, other.params, 1e-6, "parameters")
    assert_trees_close(state.ema, other.ema, 1e-6, "average")


@MESHES
def test_an_evaluation_step_in_a_users_jit(degrees: dict[str, int]) -> None:
    model, _, state = _made(degrees)
    evaluate = make_eval_step(model, lambda *args: {"loss": mse(*args)})
    batch = {name: array[0] for name, array in toy_batches(model, 1)[0].items()}
    alone = evaluate(state.params, state.model_state, batch)["loss"]
    twice = jax.jit(lambda *args: 2 * evaluate(*args)["loss"])
    total = twice(state.params, state.model_state, batch)
    assert np.isclose(float(total), 2 * float(alone), rtol=1e-6)


FROZEN = "dense/up"
FREEZING = pytest.mark.parametrize(
    "degrees",
    [{}, {"dp": 4}, {"dp": 2, "tp": 2, "domain": 2}],
    ids=["one", "fsdp4", "2x2x2"],
)


def _gradient(degrees: dict[str, int], definition: Any) -> tuple[Any, Any, Any]:
    """Returns the norm and the gradient of a step by path, and the state after it."""
    model = toy_model(model_def=definition, **degrees)
    optimizer = optax.trace(decay=0.0)
    step = make_train_step(model, optimizer, mse)
    state = init_state(model, optimizer, jax.random.key(0))
    state, info = step(state, toy_batches(model, 1)[0])
    grads = optax.tree.get(state.opt_state, "trace")
    return jax.device_get((info["grad_norm"], grads, state.model_state))


@pytest.mark.slow(but=["2x2x2"])
@FREEZING
def test_what_is_not_frozen_has_the_gradient_of_one_device(
    degrees: dict[str, int],
) -> None:
    """The norm that clips is that of these gradients alone."""
    frozen = replace(MODEL_DEF, frozen=frozenset({FROZEN}))
    norm, grads, _ = _gradient(degrees, frozen)
    one_norm, one, _ = _gradient({}, frozen)
    assert grads.keys() == MODEL_DEF.param_specs.keys() - {FROZEN}
    assert_trees_close(grads, one, 1e-6, "gradients")
    assert_close(norm, one_norm, 1e-6, "norm")
    squares = sum(float(np.sum(np.square(g, dtype="d"))) for g in grads.values())
    assert_close(norm, np.sqrt(squares), 1e-6, "norm of the trained gradients")


@pytest.mark.slow(but=["2x2x2"])
@FREEZING
def test_frozen_parameters_keep_their_bits(degrees: dict[str, int]) -> None:
    """And what the forward pass takes of them: W divided by the same sigma."""
    model = toy_model(
        model_def=replace(MODEL_DEF, frozen=frozenset({FROZEN})), **degrees
    )
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    rate = optax.constant_schedule(1e-2)
    step = make_train_step(model, optimizer, mse, schedule=rate, ema_decay=0.9)
    first = init_state(model, optimizer, jax.random.key(0), ema=True)
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

    def sizes(definition: Any) -> tuple[int, int]:
        model = toy_model(model_def=definition)
        optimizer = adamw(weight_decay=0.1, max_norm=1.0)
        rate = optax.constant_schedule(1e-2)
        step = make_train_step(model, optimizer, mse, schedule=rate, ema_decay=0.9)
        state = init_state(model, optimizer, jax.random.key(0), ema=True)
        memory = step.lower(state, toy_batches(model, 1)[0]).compile()
        analysis = memory.memory_analysis()
        return analysis.argument_size_in_bytes, analysis.output_size_in_bytes

    (whole, updated), (less, less_updated) = (
        sizes(d) for d in (MODEL_DEF, replace(MODEL_DEF, frozen=frozenset({FROZEN})))
    )
    spec = MODEL_DEF.param_specs[FROZEN]
    moments_and_average = 3 * 4 * spec.size
    # The stored v is read, which a power iteration computes anew.
    assert whole - less == moments_and_average - 4 * spec.shape[0]
    assert updated - less_updated >= moments_and_average
