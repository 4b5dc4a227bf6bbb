"""The extension points of models, on a toy model: one device against meshes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.checkpoint.run import open_run
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.spectral_norm import after_calls, iterate
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import (
    TrainState,
    init_state,
    place_state,
    state_of,
    state_specs,
)
from credit_jax.training.step import make_train_step
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run
from tests.models.toy import DEPTH, HEIGHT, TOY, toy_batch
from tests.support import assert_close, assert_trees_close, dealt, make_mesh

BATCH = 4
MESHES = {
    "dp2_tp2_domain2": {"dp": 2, "tp": 2, "domain": 2},
    "domain4": {"domain": 4},
}
FROZEN, TWICE = "entry/frozen", "entry/twice"


@cache
def _model(mesh: str) -> ParallelModel:
    return build_parallel_model(
        TOY, make_mesh(**MESHES.get(mesh, {})), min_shard_size=16
    )


@cache
def _start() -> tuple[Any, Any]:
    """Returns weights and state on the host, equal for every mesh.

    Power iterations run until sigma has converged: divided by the sigma of fresh
    vectors, the product of two matrices would be large.
    """
    params, model_state = _model("one").init(jax.random.key(0))
    vectors = model_state[SPECTRAL_NORM]
    for _ in range(5):
        vectors = after_calls(iterate(params, vectors, TOY.matrices), TOY.matrices)
    start = jax.device_get((params, {**model_state, SPECTRAL_NORM: vectors}))
    return jax.tree.map(jnp.asarray, start)


def _mse(tree: Any, context: FieldContext) -> jax.Array:
    return context.mean(jnp.square(tree["y_pred"] - tree["y"]))


def _train(mesh: str, optimizer: Any, steps: int) -> tuple[TrainState, list[float]]:
    """Trains steps of two micro-batches; returns the state and the losses."""
    model = _model(mesh)
    state = state_of(model, *_start(), optimizer, jax.random.key(1), ema=True)
    state = place_state(state, state_specs(model, optimizer, ema=True), model.mesh)
    step = make_train_step(
        model,
        optimizer,
        _mse,
        schedule=optax.constant_schedule(1e-2),
        accumulate=2,
        ema_decay=0.9,
    )
    order = dealt(BATCH, model.axes.num_data)
    micro = [toy_batch(BATCH, seed) for seed in (0, 1)]
    stacked = {name: np.stack([b[name][order] for b in micro]) for name in micro[0]}
    batch, losses = place_batch(stacked, model.mesh), []
    for _ in range(steps):
        state, info = step(state, batch)
        losses.append(np.asarray(info["loss"]))
    return jax.device_get(state), losses


@cache
def _one_step(mesh: str) -> tuple[Any, Any, Any]:
    """Returns (losses, gradients by path, model state) of one training step."""
    keep_gradient = optax.trace(decay=0.0)
    state, losses = _train(mesh, keep_gradient, 1)
    grads = optax.tree.get(state.opt_state, "trace")
    return losses[0], grads, state.model_state


@pytest.mark.slow(but=["dp2_tp2_domain2"])
@pytest.mark.parametrize("mesh", MESHES)
def test_training_equals_one_device(mesh: str) -> None:
    """Losses, gradients, running statistics, u and v after two micro-batches."""
    actual, expected = _one_step(mesh), _one_step("one")
    assert_close(actual[0], expected[0], 1e-5, f"{mesh}: losses")
    assert_trees_close(actual[1], expected[1], 1e-4, f"{mesh}: gradients")
    for name in (BATCH_STATS, SPECTRAL_NORM):
        ours, one = _flat(actual[2][name]), _flat(expected[2][name])
        assert_trees_close(ours, one, 1e-5, f"{mesh}: {name}")


def _flat(collection: Any) -> dict[str, Any]:
    return {
        f"{p}/{k}": x for p, arrays in collection.items() for k, x in arrays.items()
    }


def test_every_norm_of_a_stack_has_statistics() -> None:
    _, grads, after = _one_step("one")
    stats = after[BATCH_STATS]
    assert set(stats) == {"blocks/norm_0", "blocks/norm_1"}
    for arrays in stats.values():
        assert arrays["mean"].shape == (DEPTH, 8)
        assert list(arrays["count"]) == [2] * DEPTH
        assert not np.allclose(arrays["mean"][0], arrays["mean"][1])
        assert (np.abs(arrays["mean"]).max(1) > 1e-4).all(), "every norm saw the batch"
    assert all(np.abs(grads[f"{path}/scale"]).max() > 0 for path in stats)


def test_the_optimizer_does_not_see_a_frozen_parameter() -> None:
    _, grads, _ = _one_step("one")
    assert grads.keys() == TOY.trainable.keys()
    assert set(TOY.param_specs) - set(TOY.trainable) == {FROZEN}
    assert all(np.any(g) for g in grads.values())


def test_a_frozen_parameter_has_no_gradient() -> None:
    model, batch = _model("one"), jax.tree.map(jnp.asarray, toy_batch(BATCH))
    target, (params, model_state) = batch.pop("y"), _start()

    def loss(params: Any) -> Any:
        y = model.apply(params, model_state, batch, Noise(jax.random.key(2)))
        return jnp.mean((y - target) ** 2)

    grads = jax.grad(loss)(params)
    assert not np.any(grads[FROZEN])
    assert all(np.any(grads[path]) for path in TOY.trainable)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "dp2_tp2_domain2"])
def test_training_with_decay_leaves_a_frozen_parameter_as_it_is(mesh: str) -> None:
    state, losses = _train(mesh, adamw(weight_decay=0.1), 20)
    params, _ = _start()
    assert np.array_equal(state.params[FROZEN], params[FROZEN])
    assert np.array_equal(state.ema[FROZEN], params[FROZEN])
    assert np.mean(losses[-1]) < np.mean(losses[0])
    moved = {path for path in params if np.any(state.params[path] != params[path])}
    assert moved == set(params) - {FROZEN}
    assert FROZEN not in optax.tree.get(state.opt_state, "mu")


@pytest.mark.slow
def test_a_checkpoint_keeps_a_frozen_parameter(tmp_path: Path) -> None:
    """Restored on another mesh or by the bridge it is equal; it has no moments."""
    optimizer = adamw(weight_decay=0.1)
    state = jax.tree.map(jnp.asarray, _train("one", optimizer, 2)[0])
    checkpoints = CheckpointStore(tmp_path)
    RunStore(checkpoints, TOY.param_specs).save(4, state, Progress())
    checkpoints.wait()
    frozen = _start()[0][FROZEN]
    other = _model("dp2_tp2_domain2")
    fresh = init_state(other, optimizer, jax.random.key(9), ema=True)
    back = RunStore(checkpoints, TOY.param_specs).restore(4, fresh)
    assert np.array_equal(back.params[FROZEN], frozen)
    adam = optax.tree.get(back.opt_state, "mu")
    assert set(adam) == set(fresh.params) - {FROZEN}
    checkpoint = read_run(tmp_path, TOY)
    assert np.array_equal(checkpoint.params[FROZEN], frozen)
    assert checkpoint.moments is not None
    assert checkpoint.moments.mu.keys() == TOY.trainable.keys()


@pytest.mark.slow
def test_an_average_has_its_own_running_statistics(tmp_path: Path) -> None:
    """Equal on a mesh; only forecasts with the averaged weights use them."""
    optimizer = adamw(weight_decay=0.1)
    meshes = "one", "dp2_tp2_domain2"
    one, split = (_train(mesh, optimizer, 1)[0] for mesh in meshes)
    live, averaged = _flat(one.model_state[BATCH_STATS]), _flat(one.ema_stats)
    assert_trees_close(_flat(split.ema_stats), averaged, 1e-5, "average on a mesh")
    assert all(not np.array_equal(live[key], averaged[key]) for key in live)
    checkpoints = CheckpointStore(tmp_path)
    store = RunStore(checkpoints, TOY.param_specs)
    store.save(4, jax.tree.map(jnp.asarray, one), Progress())
    checkpoints.wait()
    other = _model("dp2_tp2_domain2")
    last = open_run(tmp_path, 4, "last").restore(other)[1][BATCH_STATS]
    assert_trees_close(_flat(last), live, 0, "last statistics")
    average = open_run(tmp_path, 4, "average")
    forecast = average.restore(other)[1][BATCH_STATS]
    on_host = average.on_host(TOY)[1][BATCH_STATS]
    for taken in (_flat(forecast), _flat(on_host)):
        for key, value in averaged.items():
            wanted = np.trunc(value) if key.endswith("count") else value
            assert np.array_equal(taken[key], wanted), key
    fresh = init_state(other, optimizer, jax.random.key(9), ema=True)
    back = store.restore(4, fresh).ema_stats
    assert_trees_close(_flat(back), averaged, 0, "restored")
    converted = read_run(tmp_path, TOY).ema_stats
    assert_trees_close(_flat(converted), averaged, 0, "in the bridge")


@pytest.mark.slow
def test_a_matrix_iterates_once_per_call() -> None:
    """No iteration of a matrix with frozen vectors; one or two of others."""
    _, start = _start()
    _, _, after = _one_step("one")
    start, after = start[SPECTRAL_NORM], after[SPECTRAL_NORM]
    weights, _ = _start()
    assert_trees_close(after[FROZEN], start[FROZEN], 0, "vectors that stay")
    iterated = [start]
    once = {path: replace(spec, calls=1) for path, spec in TOY.matrices.items()}
    for _ in range(4):
        iterated.append(iterate(weights, iterated[-1], once))
    for path, times in (("exit/linear/kernel", 2), (TWICE, 4)):
        what = f"{times} iterations of {path} in two forwards"
        assert_trees_close(after[path], iterated[times][path], 1e-6, what)
    fused, _ = _model("one").fuse_spectral_norm(*_start())
    assert_close(fused[FROZEN], weights[FROZEN], 0, "never divided")
    assert not np.allclose(fused[TWICE], weights[TWICE])


def _evaluate(mesh: str, key: int) -> Any:
    model = _model(mesh)
    batch = place_batch(toy_batch(BATCH), model.mesh)
    inputs = {name: batch[name] for name in TOY.inputs}
    fused = model.fuse_spectral_norm(*_start())
    y = model.apply(*fused, inputs, Noise(jax.random.key(key)))
    return np.asarray(y)[..., :HEIGHT, :]


@pytest.mark.parametrize("mesh", MESHES)
def test_noise_in_evaluation_is_that_of_one_device(mesh: str) -> None:
    expected = _evaluate("one", 3)
    assert_close(_evaluate(mesh, 3), expected, 1e-5, f"{mesh}: noisy forecast")
    other = np.abs(_evaluate(mesh, 4) - expected).mean()
    assert other > 0.1, "another key must give another member"


def test_members_by_vmap_over_keys() -> None:
    model = _model("dp2_tp2_domain2")
    batch = place_batch(toy_batch(BATCH), model.mesh)
    inputs = {name: batch[name] for name in TOY.inputs}
    fused = model.fuse_spectral_norm(*_start())
    keys = jax.random.split(jax.random.key(5), 3)
    members = jax.jit(jax.vmap(lambda key: model.apply(*fused, inputs, Noise(key))))(
        keys
    )
    alone = [model.apply(*fused, inputs, Noise(key)) for key in keys]
    assert_close(members, jnp.stack(alone), 1e-5, "three members")


def test_the_model_asks_for_noise() -> None:
    model, inputs = _model("one"), toy_batch(BATCH)
    del inputs["y"]
    with pytest.raises(ValueError, match=r"draws noise \(block\).*pass Noise\(key\)"):
        model.apply(*_start(), jax.tree.map(jnp.asarray, inputs))


def test_given_arrays_in_place_of_draws() -> None:
    """Arrays given for a name are used: with zeros the forecast has no noise."""
    params, model_state = _start()
    inputs = toy_batch(BATCH)
    del inputs["y"]
    field, vector = np.zeros((BATCH, HEIGHT, 6, 8)), np.zeros((BATCH, 4))
    given = {"block": jnp.asarray(field, "f4"), "exit": jnp.asarray(vector, "f4")}

    def forward(key: int, given: Any) -> Any:
        noise = Noise(jax.random.key(key), given)
        inputs_ = jax.tree.map(jnp.asarray, inputs)
        return _model("one").apply(params, model_state, inputs_, noise)

    assert_close(forward(0, given), forward(1, given), 0, "no draw is left")
    ones = {"exit": given["exit"] + 1.0}
    assert_close(forward(0, given | ones), forward(0, given) + 1.0, 1e-6, "ones added")


def test_members_beside_each_other_on_the_batch_dim() -> None:
    """Member m of sample s has number s * num_members + m; here samples are 1 and 3."""
    context = Context(first_sample=1, sample_stride=2, num_members=3)
    assert list(context.samples(6)) == [3, 4, 5, 9, 10, 11]
