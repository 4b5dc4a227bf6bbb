"""Weights for inference, divided by their spectral norm once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.placement import place_batch
from tests.models.cases import CASES
from tests.support import assert_close, make_mesh


def _made(name: str, **degrees: int) -> Any:
    """Returns a model on a mesh, its weights and state, and an input."""
    mesh = make_mesh(**degrees)
    model = build_parallel_model(CASES[f"wxformer {name}"].block, mesh)
    params, model_state = model.init(jax.random.key(0))
    grid = model.model_def.image_height, model.model_def.image_width
    shape = (2, model.model_def.input_channels, model.model_def.frames, *grid)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return model, params, model_state, place_batch({"x": x}, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=str)
def test_fused_weights_give_the_same_forecast(degrees: dict[str, int]) -> None:
    model, params, model_state, x = _made("earth", **degrees)
    fused, left = model.fuse_spectral_norm(params, model_state)
    assert not left[SPECTRAL_NORM], "the vectors are used up"
    matrix = next(iter(model.model_def.matrices))
    assert not np.allclose(fused[matrix], params[matrix]), "nothing was divided"
    expected = model.apply(params, model_state, x)
    assert_close(model.apply(fused, left, x), expected, 1e-6, f"fused, {degrees}")


def test_nothing_to_fold() -> None:
    model, params, model_state, _ = _made("frames")
    fused, left = model.fuse_spectral_norm(params, model_state)
    assert fused is params
    assert left is model_state
