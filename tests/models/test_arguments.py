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
from tests.training.toy_runs import mse, toy_batches, toy_model


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
    optimizer = optax.sgd(0.1)
    state = init_state(model, optimizer, jax.random.key(0))
    (batch,) = toy_batches(model, 1)
    step = make_train_step(model, optimizer, mse)
    return model, model.init(jax.random.key(0)), state, step, batch


def refused(call: Any, *words: str) -> str:
    """Returns the text of the ValueError of a call, which has some words."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    text = str(caught.value)
    for word in words:
        assert word in text, text
    for word in ("shard_map", "vma", "PartitionSpec", "out_specs", "jit"):
        assert word not in text, text
    return text


def changed(x: Any, index: Any) -> Any:
    return np.asarray(x)[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: np.zeros((4, 7, 1, 8, 5), "f"),
            "has 8 rows (latitudes), the model 6",
        ),
        (
            lambda x: changed(x, np.s_[..., :4]),
            "has 4 columns (longitudes), the model 5",
        ),
        (lambda x: changed(x, np.s_[:, :3]), "has 3 channels, the model 7"),
        (lambda x: changed(x, np.s_[:, :, [0, 0]]), "has 2 times, the model 1"),
        (
            lambda x: changed(x, np.s_[:3]),
            "has 3 samples, which 2 data-parallel devices",
        ),
        (lambda x: changed(x, np.s_[0]), "= (batch, 7, 1, 6, 5)"),
        (lambda x: x.astype(int), "input x holds int32; expected float32"),
        (lambda x: x.astype(jnp.bfloat16), "input x holds bfloat16; expected float32"),
    ],
)
def test_shapes_and_dtypes_of_inputs(made: Any, change: Any, words: str) -> None:
    model, weights, *_, batch = made
    given = {"x": change(batch["x"][0])}
    refused(lambda: model.apply(*weights, given), "input x", words)


def test_float64_is_not_rounded_silently(made: Any) -> None:
    model, weights, *_, batch = made
    x = np.asarray(batch["x"][0], np.float64)
    assert model.apply(*weights, {"x": x}).dtype == jnp.float32, "as JAX's functions do"
    with jax.enable_x64(True):
        words = "x holds float64; expected float32: the model computes in float32"
        refused(lambda: model.apply(*weights, {"x": x}), words)


def test_rows_are_padded_by_place_batch() -> None:
    model = toy_model(domain=4)
    weights = model.init(jax.random.key(0))
    x = np.zeros((2, 7, 1, 6, 5), np.float32)
    words = "with padding 8 on 4 domain shards: place_batch adds it"
    refused(lambda: model.apply(*weights, {"x": x}), "has 6 rows", words)
    assert model.apply(*weights, place_batch({"x": x}, model.mesh)).shape[3] == 8


def test_inputs_missing_and_extra(made: Any) -> None:
    model, weights, *_, batch = made
    x = batch["x"][0]
    refused(lambda: model.apply(*weights, {}), "the inputs lack x; the model takes")
    extra = {"x": x, "z": x}
    refused(lambda: model.apply(*weights, extra), "have z, which is not known")
    refused(lambda: model.apply(*weights, x), "expected a mapping", '{"x": (batch,')


def test_parameters_of_another_model(made: Any) -> None:
    model, (params, model_state), *_, batch = made
    given = {"x": batch["x"][0]}
    path = "dense/bias"
    lost = {name: x for name, x in params.items() if name != path}
    more = {**params, "dense/scale": params[path]}
    other = {**params, path: params[path][:2]}
    for wrong, words in (
        (lost, f"{path} is missing"),
        (more, "dense/scale is not known"),
        (other, f"{path} has the shape (2,), expected (6,)"),
    ):
        call = model.apply, (wrong, model_state, given)
        refused(lambda call=call: call[0](*call[1]), "params are not those", words)
    refused(lambda: model.fuse_spectral_norm(lost, model_state), "is missing")
    states = {**model_state, "spectral_norm": {"other": {}}}
    words = "model_state are not those", "dense/up is missing", "other is not known"
    refused(lambda: model.apply(params, states, given), *words)
    vectors = model_state["spectral_norm"]["dense/up"]
    longer = {**vectors, "u": np.ones(99, np.float32)}
    spectral_norm = {**model_state["spectral_norm"], "dense/up": longer}
    states = {**model_state, "spectral_norm": spectral_norm}
    words = "model_state are not those", "dense/up has {", "'u': (99,)"
    refused(lambda: model.apply(params, states, given), *words)


def test_params_and_state_swapped(made: Any) -> None:
    model, (params, model_state), *_, batch = made
    given = {"x": batch["x"][0]}
    words = "swapped; write apply(params, model_state, inputs)"
    refused(lambda: model.apply(model_state, params, given), words)
    refused(lambda: model.fuse_spectral_norm(model_state, params), words)
    refused(lambda: model.apply(None, model_state, given), "expected two mappings")


def test_a_loss_that_is_no_global_mean(made: Any) -> None:
    model, weights, state, _, batch = made

    def local(tree: Any, context: Any) -> Any:
        return jnp.mean((tree["y_pred"] - tree["y"]) ** 2)

    def whole(tree: Any, context: Any) -> Any:
        return context.channel_mean(tree["y_pred"])

    optimizer = optax.sgd(0.1)
    words = "the loss differs between the devices", "context.mean(values) instead of"
    step = make_train_step(model, optimizer, local)
    refused(lambda: step(state, batch), *words, "axes domain, dp_shard")
    step = make_train_step(model, optimizer, whole)
    refused(
        lambda: step(state, batch), "the loss has the shape (6,); expected a scalar"
    )
    evaluate = make_eval_step(model, lambda *given: {"mse": local(*given)})
    one = {name: x[0] for name, x in batch.items()}
    refused(lambda: evaluate(*weights, one), "the metric mse differs between")


def test_a_batch_without_micro_batches(made: Any) -> None:
    _, _, state, step, batch = made
    one = {name: x[0] for name, x in batch.items()}
    words = "batch x has the shape (4, 7, 1, 6, 5)", "for a single micro-batch give x["
    refused(lambda: step(state, one), *words)
    refused(lambda: step(state, {"x": batch["x"]}), "the batch lack y")
    fewer = {**batch, "y": batch["y"][:, :2]}
    refused(lambda: step(state, fewer), "x (1, 4), y (1, 2)")
    other = {**batch, "y": batch["y"][:, :, :1]}
    refused(lambda: step(state, other), "batch y has 1 channels, the model 6")


def test_states_of_other_steps(made: Any) -> None:
    model, (params, _), state, step, batch = made
    refused(lambda: step(params, batch), "expected the TrainState of init_state")
    averaged = init_state(model, optax.sgd(0.1), jax.random.key(0), ema=True)
    refused(lambda: step(averaged, batch), "ema", "is not known")
    momentum = make_train_step(model, optax.sgd(0.1, momentum=0.9), mse)
    refused(lambda: momentum(state, batch), "trace", "is missing")


def test_arrays_on_other_devices(made: Any) -> None:
    model, (params, model_state), state, step, batch = made
    elsewhere = jax.device_put(batch["x"][0], jax.devices()[7])
    words = (
        "is on cpu:7, but the mesh of the model on",
        "place_batch(..., model.mesh)",
    )
    refused(lambda: model.apply(params, model_state, {"x": elsewhere}), *words)
    moved = jax.device_put(params, jax.devices()[7])
    given = {"x": batch["x"][0]}
    refused(lambda: model.apply(moved, model_state, given), "params['dense/", words[0])
    both = jax.device_put(batch, jax.devices()[7])
    refused(lambda: step(state, both), "batch['x'] is on")


def test_a_checked_step_compiles_with_the_options_of_its_caller(made: Any) -> None:
    """`jax.jit` of it is a program of its own, also where it is compiled first."""
    _, _, state, step, batch = made
    program = compile_program(step, state.key.sharding.mesh, donate_argnums=0)
    text = program.lower(state, batch).as_text()
    assert "jax.buffer_donor" in text or "tf.aliasing_output" in text
    assert "jax.buffer_donor" not in step.lower(state, batch).as_text()
