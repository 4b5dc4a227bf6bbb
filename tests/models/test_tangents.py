"""Tangent-linear models beside their adjoints."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.small_models import SECTIONS
from benchmarks.speed.cases import KIN, MODEL_TYPES, case_of, make_case
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Noise
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.placement import place_batch
from tests.models.parity import mesh_of
from tests.models.test_composition import BLOCK
from tests.support import assert_close

KEY = jax.random.key(0)
# WXFormer on every mesh, each other family on one: a case compiles for 12 seconds.
MESHES = ("one", "dp2", "tp2", "domain2", "domain3", "2x2x2")
OTHERS = [name for name in MODEL_TYPES if name != "wxformer"]
CASES = [("wxformer", mesh) for mesh in MESHES]
CASES += zip(OTHERS, itertools.cycle(MESHES), strict=False)
# (model, mesh, steps of the forecast)
HESSIANS = [
    *(("wxformer", "one", 2), ("wxformer", "2x2x2", 1)),
    *((name, "one", 1) for name in ("fuxi", "swin", "graph")),
]
# Of the differences, in units of the deviations of the arrays.
STEP = 1e-7
# A block of one stage has all layers; heads of 4 channels can be split in two.
_FEW = {"depth": [1, 0, 0, 0], "dim_head": 4}


def _inner(a: Any, b: Any) -> float:
    """Returns the inner product of two trees, summed in float64."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(np.vdot(np.float64(x), np.float64(y)) for x, y in pairs)


@pytest.mark.slow(but=["swin-one"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_tangents_and_adjoint_agree(name: str, mesh: str) -> None:
    """<J v, w> = <v, J' w> of all weights and inputs, for w = J v."""
    block = make_case("tiny", name).block
    small = name in KIN or "global_window_size" in SECTIONS.get(name, {})
    case = case_of("smaller", {**block, **(_FEW if small else {})}, 2)
    placed = mesh_of(mesh)
    model = build_parallel_model(case.model_def, placed, min_shard_size=64)
    noise = Noise(KEY) if case.model_def.draws_noise else None
    params, model_state = model.init(KEY)
    rng = np.random.default_rng(0)

    def drawn(array: Any) -> Any:
        # On the host: of a jax.Array, each shape would compile a program.
        size = np.std(np.asarray(array)) or 1.0
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh", "steps"), HESSIANS)
def test_products_with_the_hessian(name: str, mesh: str, steps: int) -> None:
    """H v of a loss by all weights and inputs, beside differences of its gradient."""
    block = BLOCK if name == "wxformer" else make_case("tiny", name).block
    case, placed = case_of("smaller", dict(block), 2), mesh_of(mesh)
    policy = default_mp_policy(
        "float64", reduce_dtype="float64", output_dtype="float64"
    )
    model = build_parallel_model(
        case.model_def, placed, mp_policy=policy, min_shard_size=64
    )
    rng = np.random.default_rng(0)
    rows = case.model_def.image_height

    def drawn(array: Any) -> Any:
        size = np.std(np.asarray(array)) or 1.0
        return jax.device_put(size * rng.standard_normal(array.shape), array.sharding)

    with jax.enable_x64(True):
        weights, model_state = jax.tree.map(
            lambda a: jax.device_put(np.float64(a), a.sharding), model.init(KEY)
        )
        arrays = {**case.inputs, "y": case.y}
        fields = place_batch({k: np.float64(x) for k, x in arrays.items()}, placed)
        target = fields.pop("y")

        def loss(point: Any) -> Any:
            weights, inputs = point
            for _ in range(steps):
                y = model.apply(weights, model_state, inputs)
                inputs = inputs | {"x": y} if steps > 1 else inputs
            return jnp.mean(jnp.square(y - target)[..., :rows, :])

        def moved(point: Any, tangent: Any, size: float) -> Any:
            return jax.tree.map(lambda a, v: a + size * v, point, tangent)

        # Fresh biases of zero leave queries of zero, whose direction has no derivative.
        point = moved((weights, fields), jax.tree.map(drawn, (weights, fields)), 0.1)
        tangent = jax.tree.map(drawn, point)
        for path in weights.keys() - case.model_def.trainable.keys():
            tangent[0][path] *= 0  # Frozen ones are constants of every derivative.
        gradient = jax.jit(jax.grad(loss))
        product = jax.jit(lambda p, v: jax.jvp(jax.grad(loss), (p,), (v,))[1])
        actual = product(point, tangent)
        ahead, behind = (gradient(moved(point, tangent, h)) for h in (STEP, -STEP))
        expected = jax.tree.map(lambda a, b: (a - b) / (2 * STEP), ahead, behind)
        both = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
            for tree in (actual, expected)
        )
    assert_close(*both, 1e-7, f"{name}, {mesh}, {steps} steps: H v")
