"""Running statistics of batch norms are model state, equal on every mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import CROSSFORMER
from tests.support import assert_close, assert_trees_close, make_mesh

# Without transformer blocks, which have no batch norm and are slow to compile.
BLOCK = {**CROSSFORMER["coordinates"].block, "depth": 0}


def _train(degrees: dict[str, int]) -> tuple[Any, Any]:
    """Returns the state after an update from two micro-batches, losses, gradient."""
    mesh = make_mesh(**degrees)
    model = build_parallel_model(BLOCK, mesh)
    optimizer = adamw(max_norm=1.0)
    state = init_state(model, optimizer, jax.random.key(0))
    rng = np.random.default_rng(0)
    grid = model.model_def.image_height, model.model_def.image_width
    arrays = {
        name: rng.normal(size=(2, 4, channels, 1, *grid)).astype(np.float32)
        for name, channels in (
            ("x", model.model_def.input_channels),
            ("y", model.model_def.output_channels),
        )
    }
    step = make_train_step(
        model,
        optimizer,
        lambda tree, context: context.mean((tree["y_pred"] - tree["y"]) ** 2),
        schedule=optax.constant_schedule(1e-3),
        accumulate=2,
    )
    state, info = step(state, place_batch(arrays, mesh))
    return jax.device_get(state.model_state), jax.device_get(info)


@pytest.mark.slow
def test_two_micro_batches_on_a_mesh_leave_the_statistics_of_one_device() -> None:
    model_state, info = _train({"dp": 2, "domain": 3})
    expected, serial = _train({})
    norms = build(BLOCK).batch_stats
    assert len(norms) == 3
    ours, one = model_state[BATCH_STATS], expected[BATCH_STATS]
    for path in norms:
        assert ours[path]["count"] == one[path]["count"] == 2
        assert abs(one[path]["mean"]).max() > 1e-3, "the mean must move"
        assert_trees_close(ours[path], one[path], 1e-5, f"statistics of {path}")
    assert_close(info["loss"], serial["loss"], 1e-5, "losses of the micro-batches")
    assert_close(info["grad_norm"], serial["grad_norm"], 1e-5, "norm of the gradient")


def test_a_forward_pass_without_statistics_is_refused() -> None:
    model_def = build(BLOCK)
    x = jnp.zeros((1, 7, 1, 30, 32))
    with pytest.raises(ValueError, match=r"3 batch norms; .*batch_stats="):
        model_def.apply({}, {"x": x}, Context())
