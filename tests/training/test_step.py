"""A training step under user transformations such as `jax.lax.scan`."""

from __future__ import annotations

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
from tests.training.toy_runs import mse, toy_batches, toy_model

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
