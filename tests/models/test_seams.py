"""The seams that coming models use, on a toy model: one device against meshes."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.noise import Noise
from credit_jax.nn.spectral_norm import iterate
from credit_jax.parallel.params.fsdp import spread
from credit_jax.parallel.params.packing import PACKED, unpack
from credit_jax.parallel.placement import place_batch
from tests.models.toy import DEPTH, HEIGHT, TOY, toy_batch
from tests.support import assert_close, assert_trees_close, make_mesh

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
def _start() -> Any:
    """Weights and state on the host, the same for every mesh."""
    return jax.device_get(_model("one").init(jax.random.key(0)))


@cache
def _training_forward(mesh: str) -> Any:
    """(prediction, loss, gradients by path, state), whole arrays."""
    model = _model(mesh)

    def body(params: Any, model_state: Any, batch: Any) -> Any:
        inputs = {name: batch[name] for name in model.model_def.inputs}
        used = model.local_iterate(params, model_state)

        def loss(params: Any) -> Any:
            weights = spread(params, model.axes.batch, model.parallel_config.precision)
            key = jax.random.key(1)
            y, after = model.local_training_forward(weights, used, inputs, key)
            return model.reducer.mean((y - batch["y"]) ** 2), (y, after)

        (value, (y, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        for index in range(1, model.power_iterations):
            after = model.local_iterate(params, after, index=index)
        return y, value, grads, after

    output = model.batch_specs()["y"]
    run = model.shard_map(
        body,
        batch_specs=model.batch_specs(),
        out_specs=(
            output,
            jax.sharding.PartitionSpec(),
            model.packed_specs,
            model.model_state_specs,
        ),
    )
    batch = place_batch(toy_batch(BATCH), model.mesh)
    y, value, grads, after = jax.device_get(run(*_start(), batch))
    grads = jax.tree.map(jnp.asarray, grads)
    return y[..., :HEIGHT, :], value, unpack(grads, TOY.param_specs), after


@pytest.mark.parametrize("mesh", MESHES)
def test_training_equals_one_device(mesh: str) -> None:
    """Prediction, loss, every gradient, running statistics and u, v."""
    actual, expected = _training_forward(mesh), _training_forward("one")
    assert_close(actual[0], expected[0], 1e-5, f"{mesh}: forward")
    assert_close(actual[1], expected[1], 1e-5, f"{mesh}: loss")
    flat = [
        np.concatenate([np.ravel(grads[path]) for path in sorted(grads)])
        for grads in (actual[2], expected[2])
    ]
    assert_close(*flat, 1e-4, f"{mesh}: gradient of all parameters")
    for name in (BATCH_STATS, SPECTRAL_NORM):
        assert actual[3][name].keys() == expected[3][name].keys()
        assert_trees_close(actual[3][name], expected[3][name], 1e-5, f"{mesh}: {name}")


def test_every_norm_of_a_stack_has_statistics() -> None:
    _, _, grads, after = _training_forward("one")
    stats = after[BATCH_STATS]
    assert set(stats) == {"blocks/norm_0", "blocks/norm_1"}
    for arrays in stats.values():
        assert arrays["mean"].shape == (DEPTH, 8)
        assert list(arrays["count"]) == [1] * DEPTH
        assert not np.allclose(arrays["mean"][0], arrays["mean"][1])
        assert (np.abs(arrays["mean"]).max(1) > 1e-4).all(), "every norm saw the batch"
    assert all(np.abs(grads[f"{path}/scale"]).max() > 0 for path in stats)


def test_a_frozen_parameter_has_no_gradient_and_is_not_packed() -> None:
    params, _ = _start()
    _, _, grads, _ = _training_forward("one")
    assert not np.any(grads[FROZEN])
    assert all(np.any(g) for path, g in grads.items() if path != FROZEN)
    assert FROZEN in params, "not among the packed ones"
    assert params[PACKED].size == sum(d.size for d in TOY.trainable.values())
    assert set(TOY.param_specs) - set(TOY.trainable) == {FROZEN}


def test_power_iterations_of_each_matrix() -> None:
    """None for a matrix whose vectors are carried along; one, or two, for others."""
    _, start = _start()
    _, _, _, after = _training_forward("one")
    start, after = start[SPECTRAL_NORM], after[SPECTRAL_NORM]
    weights = unpack(jax.tree.map(jnp.asarray, _start()[0]), TOY.param_specs)
    assert_trees_close(after[FROZEN], start[FROZEN], 0, "vectors that stay")
    one = iterate(weights, start, TOY.matrices)
    assert_trees_close(after["exit/linear/kernel"], one["exit/linear/kernel"], 1e-6, "")
    assert_close(
        iterate(weights, one, TOY.matrices)[TWICE]["u"],
        after[TWICE]["u"],
        1e-6,
        "two iterations",
    )
    fused, _ = _model("one").fuse_spectral_norm(*_start())
    fused = unpack(fused, TOY.param_specs)
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
    """What a name is given is used: with zeros the forecast has no noise of its own."""
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
    """Members of samples 1, 3, ... of two ranks: s * num_members + m."""
    context = Context(first_sample=1, sample_stride=2, num_members=3)
    assert list(context.samples(6)) == [3, 4, 5, 9, 10, 11]
