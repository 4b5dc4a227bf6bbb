"""A model as `init` gives it, without training or a checkpoint."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks.speed.cases import MODEL_TYPES, make_case
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.placement import place_batch
from tests.models.cases import CASES
from tests.support import assert_trees_close, make_mesh

BLOCK = CASES["wxformer plain"].block
KEY = jax.random.key(0)


@pytest.mark.slow(but=["fuxi"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize("name", MODEL_TYPES)
def test_a_fresh_model_can_be_evaluated(name: str) -> None:
    """Its output for normalized fields is of the size of normalized fields."""
    case, mesh = make_case("tiny", name), make_mesh()
    model = build_parallel_model(case.model_def, mesh)
    noise = Noise(KEY) if case.model_def.draws_noise else None
    inputs = place_batch(case.inputs, mesh)
    size = np.asarray(model.apply(*model.init(KEY), inputs, noise)).std()
    print(f"{name}: deviation {size:.2f}")
    assert 0.1 < size < 3


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_every_mesh_begins_alike(jit: bool) -> None:
    """A loop of power iterations is written out where it is part of a program."""
    expected = build_parallel_model(BLOCK, make_mesh()).init(KEY)
    model = build_parallel_model(
        BLOCK, make_mesh(dp=2, tp=2, domain=2), min_shard_size=1
    )
    params, model_state = (jax.jit(model.init) if jit else model.init)(KEY)
    for path, array in expected[0].items():
        np.testing.assert_array_equal(params[path], array, path)
    for path, pair in expected[1][SPECTRAL_NORM].items():
        found = model_state[SPECTRAL_NORM][path]
        assert_trees_close(found, pair, 1e-6, path)
