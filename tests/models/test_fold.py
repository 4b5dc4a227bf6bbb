"""Weights for many forwards: spectral norm divided out once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.placement import place_batch
from tests.models.cases import CASES
from tests.support import assert_close, make_mesh


def _made(name: str, **degrees: int) -> Any:
    """A model on a mesh, its weights and vectors, and an input."""
    mesh = make_mesh(**degrees)
    model = build_parallel_model(CASES[name], mesh)
    params, vectors = model.init(jax.random.key(0))
    grid = model.architecture.image_height, model.architecture.image_width
    shape = (2, model.architecture.input_channels, model.architecture.frames, *grid)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return model, params, vectors, place_batch({"x": x}, mesh)["x"]


@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=str)
def test_folded_weights_give_the_same_forecast(degrees: dict[str, int]) -> None:
    model, params, vectors, x = _made("earth", **degrees)
    folded, left = model.fold(params, vectors)
    assert not left, "the vectors of spectral norm are used up"
    matrix = next(iter(model.architecture.matrices))
    assert not np.allclose(folded[matrix], params[matrix]), "nothing was divided"
    expected = model.apply(params, vectors, x)
    assert_close(model.apply(folded, left, x), expected, 1e-6, f"folded, {degrees}")


def test_nothing_to_fold() -> None:
    model, params, vectors, _ = _made("frames")
    folded, left = model.fold(params, vectors)
    assert folded is params
    assert left is vectors
