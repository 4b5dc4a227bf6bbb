"""Tangent-linear models beside their adjoints."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.small_models import SECTIONS
from benchmarks.speed.cases import KIN, MODEL_TYPES, case_of, make_case
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.noise import Noise
from credit_jax.parallel.placement import place_batch
from tests.support import make_mesh
from tests.support.slow import mark_slow

KEY = jax.random.key(0)
MESHES: dict[str, dict[str, int]] = {
    "one": {},
    "dp2": {"dp": 2},
    "tp2": {"tp": 2},
    "domain2": {"domain": 2},
    "domain3": {"domain": 3},
    "2x2x2": {"dp": 2, "tp": 2, "domain": 2},
}
# WXFormer on every mesh, each other family on one: a case compiles for 12 seconds.
CASES = [("wxformer", mesh) for mesh in MESHES]
CASES += zip([n for n in MODEL_TYPES if n != "wxformer"], itertools.cycle(MESHES))
# A block of one stage has all layers; heads of 4 channels can be split in two.
_FEW = {"depth": [1, 0, 0, 0], "dim_head": 4}


def _inner(a: Any, b: Any) -> float:
    """Returns the inner product of two trees, summed in float64."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(np.vdot(np.float64(x), np.float64(y)) for x, y in pairs)


@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize(
    ("name", "mesh"), mark_slow(CASES, but=[("wxformer", "2x2x2"), ("swin", "one")])
)
def test_tangents_and_adjoint_agree(name: str, mesh: str) -> None:
    """<J v, w> = <v, J' w> of all weights and inputs, for w = J v."""
    block = make_case("tiny", name).block
    small = name in KIN or "global_window_size" in SECTIONS.get(name, {})
    case = case_of("smaller", {**block, **(_FEW if small else {})}, 2)
    placed = make_mesh(**MESHES[mesh])
    model = build_parallel_model(case.model_def, placed, min_shard_size=64)
    noise = Noise(KEY) if case.model_def.draws_noise else None
    params, model_state = model.init(KEY)
    rng = np.random.default_rng(0)

    def drawn(array: Any) -> Any:
        size = np.std(array) or 1.0
        return (size * rng.standard_normal(array.shape)).astype(array.dtype)

    by_params = jax.tree.map(lambda p: jax.device_put(drawn(p), p.sharding), params)
    by_inputs = place_batch({k: drawn(x) for k, x in case.inputs.items()}, placed)

    @jax.jit
    def both(*args: Any) -> Any:
        def forecast(params: Any, inputs: Any) -> Any:
            y = model.apply(params, model_state, inputs, noise)
            return y[..., : case.model_def.image_height, :]

        primals, tangents = args[:2], args[2:]
        _, moved = jax.jvp(forecast, primals, tangents)
        return moved, jax.vjp(forecast, *primals)[1](moved)

    inputs = place_batch(case.inputs, placed)
    moved, pulled = both(params, inputs, by_params, by_inputs)
    forward, reverse = _inner(moved, moved), _inner((by_params, by_inputs), pulled)
    print(f"{name}, {mesh}: {reverse / forward - 1:.1e}")
    assert forward == pytest.approx(reverse, rel=1e-6)
