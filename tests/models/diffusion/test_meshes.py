"""Samples and training steps of a diffusion model on meshes against one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.forecast import Forecaster
from credit_jax.losses.named import Mse
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.nn.context import Noise
from credit_jax.parallel.placement import place_batch
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import CASES
from tests.support import assert_close, make_mesh

# Nearly all values that a new network with spectral norm infers are clamped.
TRAINED = {**CASES["diffusion v"].block, "dim_head": 2}
DDIM = {
    **TRAINED,
    "use_spectral_norm": False,
    "diffusion": {
        "image_size": 30,
        "timesteps": 50,
        "sampling_timesteps": 5,
        "ddim_sampling_eta": 0.5,
        "objective": "pred_x0",
        "clip_denoised": False,
    },
}
# All 50 steps.
DDPM = {**DDIM, "diffusion": {**DDIM["diffusion"], "sampling_timesteps": None}}
BATCH = 2
DEGREES: dict[str, dict[str, int]] = {
    "one": {},
    "domain3": {"domain": 3},
    "domain8": {"domain": 8},
    "dp2_tp2_domain2": {"dp": 2, "tp": 2, "domain": 2},
}


def _model(mesh: str, block: dict[str, Any]) -> ParallelModel:
    options: dict[str, Any] = {"min_shard_size": 1} if "dp" in mesh else {}
    return build_parallel_model(
        block, make_mesh(**DEGREES[mesh]), ac_mode="full", **options
    )


def _x(model: ParallelModel) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=model.model_def.inputs["x"].shape(BATCH)).astype("f")


@cache
def _sample(mesh: str, *, every_step: bool, key: int = 3) -> np.ndarray:
    model = _model(mesh, DDPM if every_step else DDIM)
    forecaster = Forecaster(model, *model.init(jax.random.key(0)))
    return forecaster(_x(model), Noise(jax.random.key(key)))


MESHES = [
    ("domain3", False),
    ("domain3", True),
    ("domain8", True),
    ("dp2_tp2_domain2", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "every_step"), MESHES)
def test_samples_equal_those_of_one_device(mesh: str, every_step: bool) -> None:
    """Every mesh draws the same noise; 30 rows, or 32 with padding."""
    actual = _sample(mesh, every_step=every_step)
    expected = _sample("one", every_step=every_step)
    assert 0.01 < expected.std() < 100
    assert_close(actual, expected, 1e-4, f"sample on {mesh}")


@pytest.mark.slow
def test_another_key_and_another_member_give_another_sample() -> None:
    first = _sample("one", every_step=False)
    other = _sample("one", every_step=False, key=4)
    assert np.abs(first - other).mean() > 0.01
    assert np.abs(first[0] - first[1]).mean() > 0.01


@cache
def _trained(mesh: str) -> tuple[Any, Any]:
    model = _model(mesh, TRAINED)
    optimizer = optax.sgd(1e-2)
    state = init_state(model, optimizer, jax.random.key(0))
    rng = np.random.default_rng(1)
    y = rng.normal(size=model.model_def.output.shape(BATCH)).astype("f")
    batch = {"x": _x(model)[None], "y": y[None]}
    placed = place_batch(batch, model.mesh)
    step = make_train_step(model, optimizer, Mse())
    state, info = step(state, placed)
    return info, jax.device_get(state.params)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["domain3", "domain8", "dp2_tp2_domain2"])
def test_training_steps_equal_those_of_one_device(mesh: str) -> None:
    """Equal noise steps, noise, loss weights, spectral norm and updates."""
    (actual, params), (expected, wanted) = _trained(mesh), _trained("one")
    assert_close(actual["loss"], expected["loss"], 1e-5, "loss")
    assert_close(actual["grad_norm"], expected["grad_norm"], 1e-4, "norm")
    joined = [
        np.concatenate([np.ravel(arrays[path]) for path in sorted(wanted)])
        for arrays in (params, wanted)
    ]
    assert_close(*joined, 1e-5, "parameters")
    assert jnp.isfinite(expected["loss"]).all()
