"""The extension points of models, on a toy model: one device against meshes."""

from __future__ import annotations

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
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.spectral_norm import after_calls, iterate
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import init_state
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run
from tests.models.parity import mesh_of, train
from tests.models.toy import DEPTH, HEIGHT, TOY, toy_batch
from tests.support import assert_close, assert_trees_close

BATCH = 4
FROZEN, TWICE = "entry/frozen", "entry/twice"
MESHES = pytest.mark.parametrize("mesh", ["2x2x2", "domain4"])


@cache
def _model(mesh: str) -> ParallelModel:
    return build_parallel_model(TOY, mesh_of(mesh), min_shard_size=16)


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
    return jax.device_get((params, {**model_state, SPECTRAL_NORM: vectors}))


def _train(mesh: str, optimizer: Any, steps: int) -> tuple[Any, list[Any]]:
    """Trains steps of two micro-batches; returns the state and the losses."""
    options = {"schedule": optax.constant_schedule(1e-2), "ema_decay": 0.9}
    model = _model(mesh)
    _, state, infos = train(
        model, optimizer, steps, weights=_start(), accumulate=2, **options
    )
    return state, [info["loss"] for info in infos]


@cache
def _one_step(mesh: str) -> tuple[Any, Any, Any]:
    """Returns (losses, gradients by path, model state) of one training step."""
    state, losses = _train(mesh, optax.trace(decay=0.0), 1)
    return losses[0], optax.tree.get(state.opt_state, "trace"), state.model_state


def _flat(collection: Any) -> dict[str, Any]:
    return {
        f"{p}/{k}": x for p, arrays in collection.items() for k, x in arrays.items()
    }


@pytest.mark.slow(but=["2x2x2"])
@MESHES
def test_training_equals_one_device(mesh: str) -> None:
    """Losses, gradients, running statistics, u and v after two micro-batches."""
    actual, expected = _one_step(mesh), _one_step("one")
    assert_close(actual[0], expected[0], 1e-5, f"{mesh}: losses")
    assert_trees_close(actual[1], expected[1], 1e-4, f"{mesh}: gradients")
    for name in (BATCH_STATS, SPECTRAL_NORM):
        ours, one = _flat(actual[2][name]), _flat(expected[2][name])
        assert_trees_close(ours, one, 1e-5, f"{mesh}: {name}")


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


def test_a_frozen_parameter_has_no_gradient() -> None:
    """Neither of a forward pass nor for the optimizer; all others have one."""
    _, grads, _ = _one_step("one")
    assert grads.keys() == TOY.trainable.keys() == TOY.param_specs.keys() - {FROZEN}
    assert all(np.any(g) for g in grads.values())
    model, batch = _model("one"), jax.tree.map(jnp.asarray, toy_batch(BATCH))
    target, (params, model_state) = batch.pop("y"), _start()

    def loss(params: Any) -> Any:
        y = model.apply(params, model_state, batch, Noise(jax.random.key(2)))
        return jnp.mean((y - target) ** 2)

    grads = jax.grad(loss)(params)
    assert not np.any(grads[FROZEN])
    assert all(np.any(grads[path]) for path in TOY.trainable)


@pytest.mark.slow
def test_checkpoints_of_frozen_parameters_and_averaged_statistics(
    tmp_path: Path,
) -> None:
    """Restored on another mesh or by the bridge; averages are used by forecasts alone.

    A frozen parameter has no moments; an average has its own running statistics.
    """
    optimizer = adamw(weight_decay=0.1)
    one, split = (_train(mesh, optimizer, 1)[0] for mesh in ("one", "2x2x2"))
    live, averaged = _flat(one.model_state[BATCH_STATS]), _flat(one.ema_stats)
    assert_trees_close(_flat(split.ema_stats), averaged, 1e-5, "average on a mesh")
    assert all(not np.array_equal(live[key], averaged[key]) for key in live)
    checkpoints = CheckpointStore(tmp_path)
    store = RunStore(checkpoints, TOY.param_specs)
    store.save(4, jax.tree.map(jnp.asarray, one), Progress())
    checkpoints.wait()
    other, frozen = _model("2x2x2"), _start()[0][FROZEN]
    last = open_run(tmp_path, 4, "last").restore(other)[1][BATCH_STATS]
    assert_trees_close(_flat(last), live, 0, "last statistics")
    average = open_run(tmp_path, 4, "average")
    forecast = average.restore(other)[1][BATCH_STATS]
    on_host = average.on_host(TOY)[1][BATCH_STATS]
    for taken in (_flat(forecast), _flat(on_host)):
        for key, value in averaged.items():
            expected = np.trunc(value) if key.endswith("count") else value
            assert np.array_equal(taken[key], expected), key
    back = store.restore(4, init_state(other, optimizer, jax.random.key(9), ema=True))
    converted = read_run(tmp_path, TOY)
    assert converted.moments is not None
    moments = optax.tree.get(back.opt_state, "mu"), converted.moments.mu
    for state, mu in zip((back, converted), moments, strict=True):
        assert_trees_close(_flat(state.ema_stats), averaged, 0, "restored")
        assert np.array_equal(state.params[FROZEN], frozen)
        assert mu.keys() == TOY.trainable.keys()


def _evaluate(mesh: str, noise: Any) -> Any:
    """Returns a forecast by a key or `Noise`, or those of several keys by `vmap`."""
    model = _model(mesh)
    batch = place_batch(toy_batch(BATCH), model.mesh)
    inputs = {name: batch[name] for name in TOY.inputs}
    fused = model.fuse_spectral_norm(*_start())

    def forward(noise: Any) -> Any:
        noise = noise if isinstance(noise, Noise) else Noise(noise)
        return model.apply(*fused, inputs, noise)

    many = isinstance(noise, jax.Array) and noise.ndim
    y = jax.jit(jax.vmap(forward))(noise) if many else forward(noise)
    return np.asarray(y)[..., :HEIGHT, :]


@MESHES
def test_noise_in_evaluation_is_that_of_one_device(mesh: str) -> None:
    """Also of members by `vmap` over keys."""
    keys = jax.random.split(jax.random.key(5), 3)
    expected = _evaluate("one", keys[0])
    alone = [_evaluate(mesh, key) for key in keys]
    assert_close(alone[0], expected, 1e-5, f"{mesh}: noisy forecast")
    assert np.abs(alone[1] - expected).mean() > 0.1, "another key, another member"
    if mesh == "2x2x2":
        assert_close(_evaluate(mesh, keys), np.stack(alone), 1e-5, "three members")


def test_members_beside_each_other_on_the_batch_dim() -> None:
    """Member m of sample s has number s * num_members + m; here samples are 1 and 3."""
    context = Context(first_sample=1, sample_stride=2, num_members=3)
    assert list(context.samples(6)) == [3, 4, 5, 9, 10, 11]
