"""Samples and training steps of a diffusion model on meshes against one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.forecast import Forecaster
from credit_jax.losses.named import Mse
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.nn.context import Noise
from tests.models.cases import CASES
from tests.models.parity import assert_joint, mesh_of, train
from tests.support import assert_close

# Nearly all values that a new network with spectral norm infers are clamped.
TRAINED = {**CASES["diffusion v"].block, "dim_head": 2}
PROCESS = {"image_size": 30, "timesteps": 50, "objective": "pred_x0"}
PROCESS |= {"ddim_sampling_eta": 0.5, "clip_denoised": False}


def _model(mesh: str, block: dict[str, Any]) -> ParallelModel:
    options: dict[str, Any] = {"min_shard_size": 1} if mesh == "2x2x2" else {}
    return build_parallel_model(block, mesh_of(mesh), ac_mode="full", **options)


@cache
def _sample(mesh: str, steps: int | None, key: int = 3) -> np.ndarray:
    process = {**PROCESS, "sampling_timesteps": steps}
    block = {**TRAINED, "use_spectral_norm": False, "diffusion": process}
    model, rng = _model(mesh, block), np.random.default_rng(0)
    x = rng.normal(size=model.model_def.inputs["x"].shape(2)).astype("f")
    forecaster = Forecaster(model, *model.init(jax.random.key(0)))
    return forecaster(x, Noise(jax.random.key(key)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "steps"),
    [("domain3", 5), ("domain3", None), ("domain8", None), ("2x2x2", None)],
)
def test_samples_equal_those_of_one_device(mesh: str, steps: int | None) -> None:
    """Every mesh draws the same noise; 30 rows, or 32 with padding."""
    actual, expected = _sample(mesh, steps), _sample("one", steps)
    assert 0.01 < expected.std() < 100
    assert_close(actual, expected, 1e-4, f"sample on {mesh}")
    if steps:
        other = _sample("one", steps, key=4)
        assert np.abs(expected - other).mean() > 0.01, "another key"
        assert np.abs(expected[0] - expected[1]).mean() > 0.01, "another member"


@cache
def _trained(mesh: str) -> tuple[Any, Any]:
    model = _model(mesh, TRAINED)
    _, state, infos = train(model, optax.sgd(1e-2), 1, loss=Mse(), batch=2)
    return infos[0], state.params


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["domain3", "domain8", "2x2x2"])
def test_training_steps_equal_those_of_one_device(mesh: str) -> None:
    """Equal noise steps, noise, loss weights, spectral norm and updates."""
    (actual, params), (expected, one) = _trained(mesh), _trained("one")
    assert np.isfinite(expected["loss"]).all()
    assert_close(actual["loss"], expected["loss"], 1e-5, "loss")
    assert_close(actual["grad_norm"], expected["grad_norm"], 1e-4, "norm")
    assert_joint(params, one, 1e-5, "parameters")
