"""Training of FuXi on meshes: FSDP, rematerialization, weight decay, frozen qkv."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import FUXI_BASE
from tests.support import assert_close, dealt, make_mesh

BLOCK = {**FUXI_BASE, "depth": 2}
QKV = "u_transformer/blocks/attention/qkv/kernel"
STEPS, BATCH = 20, 4


def _mse(tree: Any, context: Any) -> Any:
    return context.mean((tree["y_pred"] - tree["y"]) ** 2)


@cache
def _train(mesh: str, *, train_qkv: bool = False) -> tuple[Any, Any, np.ndarray]:
    """Returns parameters and model state before and after 20 steps, and the losses."""
    degrees = {"dp": 2, "tp": 2, "domain": 2} if mesh == "2 x 2 x 2" else {}
    policy = {"ac_mode": "full", "min_shard_size": 16} if degrees else {}
    block = {**BLOCK, "train_qkv": train_qkv}
    model = build_parallel_model(block, make_mesh(**degrees), **policy)
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    state = init_state(model, optimizer, jax.random.key(0))
    step = jax.jit(
        make_train_step(model, optimizer, _mse, schedule=optax.constant_schedule(1e-3))
    )
    rng = np.random.default_rng(0)
    shapes = {"x": model.model_def.inputs["x"], "y": model.model_def.output}
    before, losses = jax.device_get((state.params, state.model_state)), []
    for _ in range(STEPS):
        batch = {k: rng.normal(size=(1, *s.shape(BATCH))) for k, s in shapes.items()}
        batch = {k: array.astype("f4") for k, array in batch.items()}
        order = dealt(BATCH, model.axes.num_data)
        batch = {k: array[:, order] for k, array in batch.items()}
        state, info = step(state, place_batch(batch, model.mesh))
        losses.append(np.asarray(info["loss"]).mean())
    after = jax.device_get((state.params, state.model_state))
    return before, after, np.asarray(losses)


@pytest.mark.slow
def test_twenty_steps_equal_one_device() -> None:
    """With FSDP, tp, domain and full rematerialization."""
    actual, expected = _train("2 x 2 x 2"), _train("one")
    assert_close(actual[2], expected[2], 1e-5, "losses of 20 steps")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "2 x 2 x 2"])
def test_qkv_stays_as_it_is_under_decay(mesh: str) -> None:
    (before, vectors), (after, moved), losses = _train(mesh)
    assert losses[-1] < losses[0]
    assert np.array_equal(before[QKV], after[QKV])
    still = {path for path in before if np.array_equal(before[path], after[path])}
    assert still == {QKV}
    for side in ("u", "v"):
        ours = moved[SPECTRAL_NORM][QKV][side]
        assert np.array_equal(ours, vectors[SPECTRAL_NORM][QKV][side])
        proj = "u_transformer/blocks/attention/proj/kernel"
        one = vectors[SPECTRAL_NORM][proj][side]
        assert not np.array_equal(moved[SPECTRAL_NORM][proj][side], one)


@pytest.mark.slow
def test_train_qkv_trains_it() -> None:
    (before, vectors), (after, moved), _ = _train("one", train_qkv=True)
    assert np.abs(before[QKV] - after[QKV]).max() > 1e-3
    ours = moved[SPECTRAL_NORM][QKV]["u"]
    assert np.array_equal(ours, vectors[SPECTRAL_NORM][QKV]["u"]), "not divided"
