"""Models under the transformations of JAX; tangent-linear models and adjoints."""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.small_models import SECTIONS
from benchmarks.speed.cases import KIN, MODEL_TYPES, case_of, make_case
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.placement import place_batch
from tests.models.cases import BASE
from tests.models.parity import assert_joint, mesh_of
from tests.support import assert_close, assert_trees_close
from tests.support.gradients import draw

KEY = jax.random.key(0)
# Equal numbers of input and output channels, so that outputs can be fed back.
BLOCK = BASE | {"input_only_channels": 0, "output_only_channels": 0}
BLOCK |= {"dim": [4, 8, 16, 32], "dim_head": 2, "depth": [0, 1, 0, 0]}
BLOCK |= {"cross_embed_kernel_sizes": [[4], [2, 4], [2], [2]]}
ONE_AND_EIGHT = pytest.mark.parametrize("mesh", ["one", "2x2x2"])


@cache
def _made(mesh: str) -> tuple[Any, Any, Any, Any]:
    """Returns a model on a mesh, its weights and state, an input and a target."""
    model = build_parallel_model(BLOCK, mesh_of(mesh))
    shape = model.model_def.inputs["x"].shape(2)
    fields = {name: draw(shape, seed) for seed, name in enumerate("xy")}
    placed = place_batch(fields, model.mesh)
    return model, model.init(KEY), placed["x"], placed["y"]


@pytest.mark.slow
@ONE_AND_EIGHT
def test_gradients_by_weights_and_by_the_input(mesh: str) -> None:
    """Under the user's jit they equal the eager ones, and by `jax.checkpoint`."""
    model, (params, state), x, y = _made(mesh)

    def loss(params: Any, x: Any, apply: Any = model.apply) -> Any:
        return jnp.mean((apply(params, state, {"x": x}) - y) ** 2)

    grad = jax.value_and_grad(loss, argnums=(0, 1))
    eager, expected = grad(params, x)
    assert float(jnp.abs(expected[1]).max()) > 1e-6
    recomputed = jax.jit(lambda *args: grad(*args, jax.checkpoint(model.apply)))
    for program in (jax.jit(grad), recomputed):
        value, grads = program(params, x)
        assert_close(value, eager, 1e-6, "loss")
        assert_trees_close(grads[0], expected[0], 1e-5, "gradient by the weights")
        assert_close(grads[1], expected[1], 1e-5, "gradient by the input")


@pytest.mark.slow
@ONE_AND_EIGHT
def test_vmap_over_members(mesh: str) -> None:
    """`vmap` over inputs with one set of weights, and over weights."""
    model, weights, x, y = _made(mesh)
    members = jnp.stack([x, y, x - y])
    together = jax.jit(jax.vmap(model.apply, in_axes=(None, None, 0)))
    outputs = together(*weights, {"x": members})
    alone = jnp.stack([model.apply(*weights, {"x": member}) for member in members])
    assert_close(outputs, alone, 1e-5, "members of inputs")
    several = [model.init(key) for key in jax.random.split(jax.random.key(1), 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    outputs = jax.jit(jax.vmap(model.apply, in_axes=(0, 0, None)))(*stacked, {"x": x})
    alone = jnp.stack([model.apply(*both, {"x": x}) for both in several])
    assert_close(outputs, alone, 1e-5, "members of weights")


@pytest.mark.slow(but=["2x2x2"])
@ONE_AND_EIGHT
def test_scan_over_forecast_steps(mesh: str) -> None:
    """Each iteration depends on the one before, and no other program part runs."""
    model, weights, x, _ = _made(mesh)

    def step(x: Any, _: None = None) -> Any:
        y = model.apply(*weights, {"x": x})
        return y, y

    expected, state = [], x
    for _ in range(3):
        state, _ = step(state)
        expected.append(state)
    forecast = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[1])
    assert_close(forecast(x), jnp.stack(expected), 1e-5, "three steps")


@pytest.mark.slow
@ONE_AND_EIGHT
def test_fused_weights_give_the_same_forecast(mesh: str) -> None:
    """Also where `init` and `fuse_spectral_norm` are parts of one program."""
    model, weights, x, _ = _made(mesh)
    expected = model.apply(*weights, {"x": x})
    together = jax.jit(lambda key: model.fuse_spectral_norm(*model.init(key)))
    for fused in (model.fuse_spectral_norm(*weights), together(KEY)):
        assert not fused[1][SPECTRAL_NORM], "the vectors are used up"
        assert_close(model.apply(*fused, {"x": x}), expected, 1e-6, "fused")
        matrix = next(iter(model.model_def.matrices))
        assert not np.allclose(fused[0][matrix], weights[0][matrix]), "not divided"


@pytest.mark.slow
def test_a_whole_program_gets_options_and_cannot_be_a_part() -> None:
    model, weights, x, _ = _made("one")
    program = compile_program(model.apply, model.mesh)
    expected = model.apply(*weights, {"x": x})
    assert_close(program(*weights, {"x": x}), expected, 1e-6, "whole program")
    with pytest.raises(ValueError, match="compiler_options"):
        jax.jit(program)(*weights, {"x": x})


MESHES = ("one", "dp2", "tp2", "domain2", "domain3", "2x2x2")
# WXFormer on every mesh, each other family on one: a case compiles for 12 seconds.
# `TANGENTS=all` is every family on every mesh, half an hour on 2 cores.
CASES = [("wxformer", mesh) for mesh in MESHES]
OTHERS = [name for name in MODEL_TYPES if name != "wxformer"]
if os.environ.get("TANGENTS") == "all":
    CASES += itertools.product(OTHERS, MESHES)
else:
    CASES += zip(OTHERS, itertools.cycle(MESHES))
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
    model = build_parallel_model(case.model_def, mesh_of(mesh), min_shard_size=64)
    noise = Noise(KEY) if case.model_def.draws_noise else None
    params, model_state = model.init(KEY)
    rng = np.random.default_rng(0)

    def drawn(array: Any) -> Any:
        # On the host: of a jax.Array, each shape would compile a program.
        size = np.std(np.asarray(array)) or 1.0
        return (size * rng.standard_normal(array.shape)).astype(array.dtype)

    by_params = jax.tree.map(lambda p: jax.device_put(drawn(p), p.sharding), params)
    by_inputs = {name: drawn(x) for name, x in case.inputs.items()}
    by_inputs = place_batch(by_inputs, model.mesh)

    @jax.jit
    def both(*args: Any) -> Any:
        def forecast(params: Any, inputs: Any) -> Any:
            y = model.apply(params, model_state, inputs, noise)
            return y[..., : case.model_def.image_height, :]

        primals, tangents = args[:2], args[2:]
        _, moved = jax.jvp(forecast, primals, tangents)
        return moved, jax.vjp(forecast, *primals)[1](moved)

    inputs = place_batch(case.inputs, model.mesh)
    moved, pulled = both(params, inputs, by_params, by_inputs)
    forward, reverse = _inner(moved, moved), _inner((by_params, by_inputs), pulled)
    print(f"{name}, {mesh}: {reverse / forward - 1:.1e}")
    assert forward == pytest.approx(reverse, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh", "steps"), HESSIANS)
def test_products_with_the_hessian(name: str, mesh: str, steps: int) -> None:
    """H v of a loss by all weights and inputs, beside differences of its gradient."""
    block = BLOCK if name == "wxformer" else make_case("tiny", name).block
    case, wide = case_of("smaller", dict(block), 2), "float64"
    policy = default_mp_policy(wide, reduce_dtype=wide, output_dtype=wide)
    model = build_parallel_model(
        case.model_def, mesh_of(mesh), mp_policy=policy, min_shard_size=64
    )
    rng, rows = np.random.default_rng(0), case.model_def.image_height

    def drawn(array: Any) -> Any:
        size = np.std(np.asarray(array)) or 1.0
        return jax.device_put(size * rng.standard_normal(array.shape), array.sharding)

    with jax.enable_x64(True):
        weights, model_state = jax.tree.map(
            lambda a: jax.device_put(np.float64(a), a.sharding), model.init(KEY)
        )
        arrays = {**case.inputs, "y": case.y}
        fields = place_batch({k: np.float64(x) for k, x in arrays.items()}, model.mesh)
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
    assert_joint(*(p | x for p, x in (actual, expected)), 1e-7, f"{name}, {mesh}: H v")
