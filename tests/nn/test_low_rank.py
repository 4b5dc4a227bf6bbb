"""Low-rank adapters: the sum before spectral norm, on every mesh as on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model, place_weights
from credit_jax.nn.low_rank import LowRank, is_adapter, is_matrix, merged
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.training.toy_runs import MODEL_DEF, mse, toy_batches

TARGETS = frozenset({"dense/up", "dense/down"})
LOW_RANK = LowRank(2, 2.0, TARGETS)
ADAPTED = replace(MODEL_DEF, frozen=frozenset(MODEL_DEF.param_specs), low_rank=LOW_RANK)
MESHES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one": ({}, {}),
    "fsdp4": ({"dp": 4}, {}),
    "tp2": ({"tp": 2}, {}),
    "domain3": ({"domain": 3}, {}),
    "fsdp2_domain2_over": ({"dp": 2, "domain": 2}, {"over_domain": True}),
    "domain2_over": ({"domain": 2}, {"over_domain": True}),
    "2x2x2": ({"dp": 2, "tp": 2, "domain": 2}, {"ac_mode": "full"}),
    "2x2x2_over": ({"dp": 2, "tp": 2, "domain": 2}, {"over_domain": True}),
}


def start() -> tuple[dict[str, np.ndarray], Any]:
    """Weights and adapters, of which none is 0, and vectors of the sums."""
    model = build_parallel_model(MODEL_DEF, make_mesh())
    params, state = jax.device_get(model.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    for path, spec in LOW_RANK.param_specs(MODEL_DEF.param_specs).items():
        params[path] = 0.3 * rng.normal(size=spec.shape).astype(np.float32)
    return params, state


def train(
    mesh: str, definition: ModelDef, weights: Any, optimizer: Any, steps: int
) -> Any:
    degrees, options = MESHES[mesh]
    model = build_parallel_model(definition, make_mesh(**degrees), **options)
    placed = place_weights(model, *weights)
    schedule = optax.constant_schedule(1e-2)
    step = make_train_step(model, optimizer, mse, schedule=schedule, ema_decay=0.9)
    key = jax.random.key(1)
    state = init_state(model, optimizer, key, weights=placed, ema=True)
    losses = []
    for batch in toy_batches(model, steps):
        state, info = step(state, batch)
        losses.append(float(info["loss"][0]))
    return jax.device_get((state, losses))


@pytest.mark.slow(but=["domain3", "2x2x2"])
@pytest.mark.parametrize("mesh", [*MESHES])
def test_gradients_are_those_of_one_device(mesh: str) -> None:
    keep = optax.trace(decay=0.0)
    actual, expected = (
        train(name, ADAPTED, start(), keep, 1) for name in (mesh, "one")
    )
    assert_close(actual[1], expected[1], 1e-6, f"{mesh}: loss")
    grads, one = (optax.tree.get(s.opt_state, "trace") for s, _ in (actual, expected))
    assert set(grads) == set(LOW_RANK.param_specs(MODEL_DEF.param_specs))
    assert all(np.any(gradient) for gradient in grads.values())
    assert_trees_close(grads, one, 1e-6, f"{mesh}: gradients")


def test_the_sum_is_the_matrix_of_the_layers() -> None:
    """Loss, gradient and u, v are those of a model that has the sum: dA = dW B'."""
    params, state = start()
    keep = optax.trace(decay=0.0)
    (low, low_losses) = train("one", ADAPTED, (params, state), keep, 1)
    sums = merged(params, LOW_RANK, ADAPTED.param_specs)
    (full, losses) = train("one", MODEL_DEF, (sums, state), keep, 1)
    assert_close(low_losses, losses, 1e-6, "loss")
    of_sum = optax.tree.get(full.opt_state, "trace")
    grads = optax.tree.get(low.opt_state, "trace")
    for path in TARGETS:
        down, up = (params[p].astype(np.float64) for p in LOW_RANK.adapters(path))
        a, b = (grads[p] for p in LOW_RANK.adapters(path))
        product = params[path] + 2.0 * np.einsum("ri,ro->io", down, up)
        assert_close(sums[path], product, 1e-6, f"{path}: sum")
        expected = 2.0 * np.einsum("io,ro->ri", of_sum[path], up)
        assert_close(a, expected, 1e-5, f"{path}: A")
        expected = 2.0 * np.einsum("io,ri->ro", of_sum[path], down)
        assert_close(b, expected, 1e-5, f"{path}: B")
        vectors = (s.model_state[SPECTRAL_NORM][path] for s in (low, full))
        assert_trees_close(*vectors, 1e-6, f"{path}: vectors")


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", ["one", "2x2x2"])
def test_adapters_alone_are_trained(mesh: str) -> None:
    params, state = start()
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    after, _ = train(mesh, ADAPTED, (params, state), optimizer, 3)
    for path, value in after.params.items():
        assert np.array_equal(value, params[path]) != is_adapter(path), path
    assert set(optax.tree.get(after.opt_state, "mu")) == {
        path for path in params if is_adapter(path)
    }


def test_fused_weights_have_the_sum_once() -> None:
    model = build_parallel_model(ADAPTED, make_mesh())
    placed = place_weights(model, *start())
    x = toy_batches(model, 1)[0]["x"][0]
    fused = model.fuse_spectral_norm(*placed)
    expected = np.asarray(model.apply(*placed, {"x": x}))
    assert_close(model.apply(*fused, {"x": x}), expected, 1e-6, "forecast")
    assert not any(np.any(fused[0][path]) for path in fused[0] if is_adapter(path))


def test_the_first_forecast_is_that_of_the_base() -> None:
    model = build_parallel_model(ADAPTED, make_mesh())
    params, state = start()
    for path in TARGETS:
        up = LOW_RANK.adapters(path)[1]
        params[up] = np.zeros_like(params[up])
    base = build_parallel_model(MODEL_DEF, make_mesh())
    x = toy_batches(model, 1)[0]["x"][0]
    own = {path: params[path] for path in MODEL_DEF.param_specs}
    expected = base.apply(*place_weights(base, own, state), {"x": x})
    actual = model.apply(*place_weights(model, params, state), {"x": x})
    assert np.array_equal(actual, expected)


def test_what_a_matrix_is() -> None:
    dense = ParamSpec((4, 6), ("embed", "mlp"), matrix_out=(1,))
    small, wide = (
        ParamSpec((n, n, 4, 6), (None, None, "conv_in", "conv_out"), matrix_out=(3,))
        for n in (1, 3)
    )
    bias = ParamSpec((6,), ("mlp",))
    flags = [is_matrix(spec) for spec in (dense, dense.stack(2), small, wide, bias)]
    assert flags == [True, True, True, False, False]
