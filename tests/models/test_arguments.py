"""Errors of misuse name what was expected, in the names that a user has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.placement import place_batch
from credit_jax.training.state import init_state
from credit_jax.training.step import make_eval_step, make_train_step
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.training.toy_runs import mse, toy_batches, toy_model

CASES = Cases("arguments")
SGD = optax.sgd(0.1)


@pytest.fixture(autouse=True)
def unchecked() -> Any:
    """Without the checks of annotations, which only tests make."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module")
def made() -> Any:
    """A model on 2 x 2 devices, its weights, state, step and a batch."""
    model = toy_model(dp=2, domain=2)
    state = init_state(model, SGD, jax.random.key(0))
    (batch,) = toy_batches(model, 1)
    step = make_train_step(model, SGD, mse)
    return model, model.init(jax.random.key(0)), state, step, batch


def with_input(name: str, made: Any) -> None:
    model, weights, *_, batch = made
    x = batch["x"][0]
    model.apply(*weights, {"x": INPUTS[name](np.asarray(x))})


INPUTS = {
    "more rows": lambda x: np.zeros((4, 7, 1, 8, 5), "f"),
    "fewer columns": lambda x: x[..., :4],
    "fewer channels": lambda x: x[:, :3],
    "two times": lambda x: x[:, :, [0, 0]],
    "three samples": lambda x: x[:3],
    "one sample": lambda x: x[0],
    "integers": lambda x: x.astype(int),
    "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
}
CASES.rows(with_input, *INPUTS, name="input")


def with_inputs(name: str, made: Any) -> None:
    model, weights, *_, batch = made
    x = batch["x"][0]
    inputs = {"none": {}, "another": {"x": x, "z": x}, "an array": x}
    model.apply(*weights, inputs[name])


CASES.rows(with_inputs, "none", "another", "an array", name="inputs")


@CASES.case
def float64_is_not_rounded_silently(made: Any) -> None:
    model, weights, *_, batch = made
    x = np.asarray(batch["x"][0], np.float64)
    assert model.apply(*weights, {"x": x}).dtype == jnp.float32, "as JAX's functions do"
    with jax.enable_x64(True):
        model.apply(*weights, {"x": x})


@CASES.case
def rows_are_padded_by_place_batch() -> None:
    model = toy_model(domain=4)
    weights = model.init(jax.random.key(0))
    x = {"x": np.zeros((2, 7, 1, 6, 5), np.float32)}
    assert model.apply(*weights, place_batch(x, model.mesh)).shape[3] == 8
    model.apply(*weights, x)


def with_parameters(name: str, made: Any) -> None:
    model, (params, state), *_, batch = made
    inputs, path = {"x": batch["x"][0]}, "dense/bias"
    vectors = state["spectral_norm"]["dense/up"]
    longer = {"dense/up": vectors | {"u": np.ones(99, np.float32)}}
    lost = {name: x for name, x in params.items() if name != path}
    weights = {
        "one fewer": (lost, state),
        "one more": ({**params, "dense/scale": params[path]}, state),
        "another shape": ({**params, path: params[path][:2]}, state),
        "other vectors": (params, {**state, "spectral_norm": {"other": {}}}),
        "longer vectors": (
            params,
            {**state, "spectral_norm": state["spectral_norm"] | longer},
        ),
        "swapped": (state, params),
        "none": (None, state),
        "elsewhere": (jax.device_put(params, jax.devices()[7]), state),
        "fewer to fuse": (lost, state),
        "swapped to fuse": (state, params),
    }
    if "fuse" in name:
        model.fuse_spectral_norm(*weights[name])
    elif name == "an input elsewhere":
        x = jax.device_put(batch["x"][0], jax.devices()[7])
        model.apply(params, state, {"x": x})
    else:
        model.apply(*weights[name], inputs)


CASES.rows(
    with_parameters,
    *("one fewer", "one more", "another shape", "other vectors", "longer vectors"),
    *("swapped", "none", "elsewhere", "an input elsewhere"),
    *("fewer to fuse", "swapped to fuse"),
    name="weights",
)


def a_loss_that_is_no_global_mean(name: str, made: Any) -> None:
    model, weights, state, _, batch = made

    def local(tree: Any, context: Any) -> Any:
        return jnp.mean((tree["y_pred"] - tree["y"]) ** 2)

    if name == "metric":
        evaluate = make_eval_step(model, lambda *args: {"mse": local(*args)})
        evaluate(*weights, {name: x[0] for name, x in batch.items()})
    by_channel = lambda tree, context: context.channel_mean(tree["y_pred"])  # noqa: E731
    loss = by_channel if name == "of channels" else local
    make_train_step(model, SGD, loss)(state, batch)


CASES.rows(a_loss_that_is_no_global_mean, "local", "of channels", "metric", name="loss")


def step_with(name: str, made: Any) -> None:
    model, (params, _), state, step, batch = made
    x, y = batch["x"], batch["y"]
    batches = {
        "no micro-batches": {name: each[0] for name, each in batch.items()},
        "no target": {"x": x},
        "fewer targets": {"x": x, "y": y[:, :2]},
        "a target of one channel": {"x": x, "y": y[:, :, :1]},
        "a batch elsewhere": jax.device_put(batch, jax.devices()[7]),
    }
    if name == "a state of averages":
        state = init_state(model, SGD, jax.random.key(0), ema=True)
    if name == "a state of another optimizer":
        step = make_train_step(model, optax.sgd(0.1, momentum=0.9), mse)
    step(params if name == "parameters" else state, batches.get(name, batch))


CASES.rows(
    step_with,
    *("no micro-batches", "no target", "fewer targets", "a target of one channel"),
    *("a batch elsewhere", "a state of averages", "a state of another optimizer"),
    "parameters",
    name="step",
)


def test_no_message_has_words_of_jax() -> None:
    text = CASES.path.read_text()
    for word in ("shard_map", "vma", "PartitionSpec", "out_specs", "jit"):
        assert word not in text, word


def test_a_checked_step_compiles_with_the_options_of_its_caller(made: Any) -> None:
    """`jax.jit` of it is a program of its own, also where it is compiled first."""
    _, _, state, step, batch = made
    program = compile_program(step, state.key.sharding.mesh, donate_argnums=0)
    text = program.lower(state, batch).as_text()
    assert "jax.buffer_donor" in text or "tf.aliasing_output" in text
    assert "jax.buffer_donor" not in step.lower(state, batch).as_text()
