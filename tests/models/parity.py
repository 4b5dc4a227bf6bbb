"""Comparison of models: with serial CREDIT by its weights, and meshes with one device.

A model is given by its `model:` section. Each section, mesh and kind of arithmetic is
one program for all tests of a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict, key_map_for, to_state_dict
from credit_jax.models.diffusion.process import LARGEST_SIGMA, SMALLEST_SIGMA
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model, place_weights
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.ops.compensated import joint_error
from credit_jax.parallel.params.precision import Float8, Precision
from credit_jax.parallel.placement import batch_spec, place_batch
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.support import assert_close, assert_trees_close, dealt, make_mesh
from tests.training.toy_runs import mse

# Bounds; in float64 those of CREDIT and of one device.
FORWARD, GRADIENT, FLOAT64, ONE_DEVICE = 1e-5, 1e-4, 1e-9, 1e-11
# Convolutions in float64 are slow on CPU, as each sample is computed separately.
BATCH = 4
KEY = jax.random.key(0)

Section = dict[str, Any]
Tree = dict[str, np.ndarray]

# dp, tp, domain
MESHES = {
    **{"one": (1, 1, 1), "dp2": (2, 1, 1), "dp8": (8, 1, 1), "tp2": (1, 2, 1)},
    **{f"domain{n}": (1, 1, n) for n in (2, 3, 4, 5, 8)},
    **{"tp2-domain3": (1, 2, 3), "dp2-domain3": (2, 1, 3), "2x2x2": (2, 2, 2)},
}


def mesh_of(name: str) -> Any:
    """Returns the mesh of a name in `MESHES`."""
    return make_mesh(**dict(zip(("dp", "tp", "domain"), MESHES[name], strict=True)))


def _key(block: Mapping[str, Any]) -> str:
    return json.dumps(block, sort_keys=True)


@cache
def _program(
    key: str,
    mesh: str,
    dtype: str,
    implementation: str,
    float8: Float8 | None,
    remat: str,
) -> tuple[Any, Any]:
    """Returns a model on a mesh, and its jitted training forward with gradient."""
    precision = Precision.of(dtype)
    if float8 is not None:
        precision = precision.with_float8(float8)
    small: dict[str, Any] = {} if remat == "none" else {"min_shard_size": 1}
    model = build_parallel_model(
        json.loads(key), mesh_of(mesh), ac_mode=remat, mp_policy=precision, **small
    )
    model_def, axes = model.model_def, model.axes

    def step(params: Any, model_state: Any, batch: Any) -> Any:
        iterated = model.local_iterate(params, model_state)
        inputs = {name: batch[name] for name in model_def.network_inputs}

        def loss(params: Any) -> Any:
            y, after = model.local_training_forward(params, iterated, inputs, KEY)
            return model.reducer.mean((y - batch["y"]) ** 2), (y, after)

        (value, (y, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return y, value, grads, after

    spec = batch_spec(axes)
    inputs = {k: s.partition_spec(axes) for k, s in model_def.network_inputs.items()}
    body = model.shard_map(
        step,
        batch_specs={**inputs, "y": spec},
        out_specs=(spec, PartitionSpec(), model.specs, model.model_state_specs),
    )
    return model, jax.jit(body)


def run(
    block: Mapping[str, Any],
    mesh: str = "one",
    dtype: str = "float32",
    implementation: str = "xla",
    *,
    float8: Float8 | None = None,
    remat: str = "none",
    batch: int = BATCH,
    weights: Any = None,
    arrays: Any = None,
) -> Any:
    """Returns (prediction, loss, gradients, state) of a training forward, all whole.

    The state contains the vectors of spectral norm after one power iteration, and the
    running statistics of batch norms after the forward. `weights` (parameters and
    state) and `arrays` (inputs and "y") are random ones, equal for every mesh, by
    default. With `remat` parameters of every size are split.
    """
    model, program = _program(_key(block), mesh, dtype, implementation, float8, remat)
    wide = dtype if dtype == "float64" else "float32"
    params, model_state = jax.tree.map(
        lambda x: x if x.dtype == np.int32 else x.astype(wide),
        weights or _weights(_key(block)),
    )
    order = dealt(batch, MESHES[mesh][0])
    arrays = arrays or _data(model.model_def, wide, batch)
    data = place_batch({k: x[order] for k, x in arrays.items()}, model.mesh)
    with use_implementation(implementation):
        numbers = program(params, model_state, data)
    y, value, grads, after = jax.device_get(numbers)
    rows = model.model_def.image_height
    # Of these rows a gradient of the whole global array is that of one device.
    assert not y[..., rows:, :].any()
    return y[np.argsort(order), ..., :rows, :], value, grads, after


def _data(model_def: ModelDef, dtype: str, batch: int) -> Tree:
    rng = np.random.default_rng(5)
    specs = {**model_def.network_inputs, "y": model_def.output}
    return {k: rng.normal(size=s.shape(batch)).astype(dtype) for k, s in specs.items()}


@cache
def _weights(key: str) -> Any:
    """Returns random weights, equal for every mesh; none is at its initial 0 or 1."""
    model_def, rng = build(json.loads(key)), np.random.default_rng(1)

    def drawn(key: Any) -> Any:
        params = model_def.init(key)
        return params, model_def.init_model_state(key, params)

    with jax.enable_x64(False):  # one program for all dtypes
        params, model_state = jax.device_get(jax.jit(drawn)(KEY))
    spread = {p: 0.05 * rng.normal(size=w.shape) for p, w in params.items()}
    return {p: np.asarray(w) + spread[p] for p, w in params.items()}, model_state


def one_device(
    block: Mapping[str, Any], dtype: str = "float32", batch: int = BATCH
) -> Any:
    """Returns the cached result of `run` on one device."""
    return _one_device(_key(block), dtype, batch)


@cache
def _one_device(key: str, dtype: str, batch: int) -> Any:
    return run(json.loads(key), dtype=dtype, batch=batch)


def assert_equals_one_device(
    block: Mapping[str, Any],
    mesh: str,
    name: str,
    *,
    dtype: str = "float32",
    **options: Any,
) -> None:
    """Asserts equal prediction, loss, gradient and state, by `run(**options)`.

    In float64, each array of the gradient; in float32, all parameters together.
    """
    with jax.enable_x64(dtype == "float64"):
        actual = run(block, mesh, dtype, **options)
        expected = one_device(block, dtype, options.get("batch", BATCH))
    assert actual[0].dtype == dtype, f"the forward ran in {actual[0].dtype}"
    compare(actual, expected, f"{name} on {mesh}, {dtype}")


def compare(actual: Any, expected: Any, what: str) -> None:
    """Compares the results of `run` on a mesh and on one device."""
    is_wide = expected[0].dtype == np.float64
    forward, gradient = (ONE_DEVICE,) * 2 if is_wide else (FORWARD, GRADIENT)
    assert_close(actual[0], expected[0], forward, f"{what}: forward")
    assert_close(actual[1], expected[1], forward, f"{what}: loss")
    assert_joint(actual[2], expected[2], gradient, what)
    if is_wide:
        assert_trees_close(actual[2], expected[2], ONE_DEVICE, f"{what}: each gradient")
    assert_same_state(actual[3], expected[3], forward, f"{what}: the forward")


def assert_joint(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Asserts that the arrays of two dicts are equal as one vector."""
    error = joint_error(actual, expected)
    print(f"{what}: gradient, all: relative error {error:.2e}")
    assert error <= bound, f"{what}: gradient, all: {error:.3e} > {bound:.0e}"


def assert_same_state(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Asserts equal vectors and statistics of the same norms, each kind together."""
    ours, theirs = (s[SPECTRAL_NORM] | s[BATCH_STATS] for s in (actual, expected))
    assert ours.keys() == theirs.keys(), f"{what}: another state"
    for name in sorted({name for arrays in theirs.values() for name in arrays}):
        of_name = (
            {path: arrays[name] for path, arrays in state.items() if name in arrays}
            for state in (ours, theirs)
        )
        assert_trees_close(*of_name, bound, f"{name} after {what}")


def run_with_credits_weights(
    block: Section, case: Any, implementation: str = "cpu", noise: Noise | None = None
) -> tuple[Any, Any, Tree, Tree]:
    """Returns our prediction, loss, gradients by inputs and by CREDIT's parameters."""
    model_def = build(block)
    params, model_state = jax.device_put(from_state_dict(model_def, case.state))
    context = Context(precision=Precision.of(str(case.y.dtype)), noise=noise)

    def loss(params: Any, inputs: Any) -> Any:
        weights = spectral_norm.normalize(
            params, model_state[SPECTRAL_NORM], model_def.matrices
        )
        y = model_def.apply(weights, inputs, context, model_state[BATCH_STATS])
        return (y**2).mean(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    with use_implementation(implementation):
        (value, y), (by_param, by_input) = step(
            params, jax.tree.map(jnp.asarray, case.inputs)
        )
    by_param, by_input = jax.device_get((by_param, by_input))
    named = to_state_dict(model_def, by_param, jax.device_get(model_state))
    return np.asarray(y), np.asarray(value), by_input, named


def assert_equals_credit(
    credit: Any,
    block: Section,
    name: str,
    implementation: str = "cpu",
    *,
    dtype: str = "float32",
    **options: Any,
) -> tuple[Tree, Tree]:
    """Asserts equal forward, loss and gradients by inputs and parameters.

    In float64, each array of the gradient; in float32, all parameters together. Options
    are those of `credit_case`, and `theirs`, CREDIT's section, where it differs.
    Returns our gradients and CREDIT's, by CREDIT's names.
    """
    import torch

    from credit_torch_bridge.compare.credit_side import recorded_noise

    theirs, wide = options.pop("theirs", block), getattr(torch, dtype)
    draw = mock.patch.object(torch, "randn", partial(torch.randn, dtype=wide))
    with draw, recorded_noise() as drawn:
        case = credit.credit_case(theirs, **{"seed": 3, "dtype": wide} | options)
    with jax.enable_x64(dtype == "float64"):
        # What CREDIT draws last is the noise of the forward pass.
        sites = _noise_sites(build(block).config)
        arrays = dict(zip(sites, drawn[len(drawn) - len(sites) :], strict=True))
        noise = Noise(KEY, jax.tree.map(jnp.asarray, arrays))
        y, value, by_input, named = run_with_credits_weights(
            block, case, implementation, noise if sites else None
        )
    is_wide = dtype == "float64"
    forward, gradient = (FLOAT64, FLOAT64) if is_wide else (FORWARD, GRADIENT)
    assert y.dtype == case.y.dtype, f"the forward ran in {y.dtype}"
    assert y.shape == case.y.shape, f"{y.shape}, CREDIT gives {case.y.shape}"
    assert_close(y, case.y, forward, f"{name}: forward")
    assert_close(value, case.loss, forward, f"{name}: loss")
    for key, expected in case.by_input.items():
        assert_close(by_input[key], expected, gradient, f"{name}: gradient of {key}")
    assert named.keys() >= case.gradients.keys(), "every gradient must be there"
    constant = {*key_map_for(build(block)).parameters.keys} - case.gradients.keys()
    assert not any(named[key].any() for key in constant), "CREDIT trains fewer"
    ours = {key: named[key] for key in case.gradients}
    if is_wide:
        assert_trees_close(ours, case.gradients, gradient, f"{name}: gradients")
    assert_joint(ours, case.gradients, gradient, name)
    return ours, case.gradients


def _noise_sites(config: Any) -> list[str]:
    """Returns the call sites of noise of the ensemble, in the order of CREDIT."""
    if not hasattr(config, "noise_latent_dim"):
        return []
    kinds = ("encoder", "decoder") if config.encoder_noise else ("decoder",)
    sites = [f"{kind} {index}" for kind in kinds for index in range(3)]
    if config.correlated:
        return ["latent", *sites]
    return [name for site in sites for name in (f"{site} latent", site)]


def assert_training_forward_equals_credit(
    credit: Any,
    block: Section,
    mesh: str = "one",
    *,
    dtype: str = "float32",
    output: bool = True,
    prepare: Callable[[Any], None] = lambda model: None,
) -> Any:
    """Asserts equal output, gradient and model state of one training-mode forward.

    In float32 the gradient is not compared of models with batch norms, which amplify
    rounding.
    `prepare` changes CREDIT's model before. Returns CREDIT's case.
    """
    import torch

    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "prepare": prepare}
    case = credit.credit_case(block, 1, "train", batch=BATCH, **options)
    model_def = build(block)
    before, after = (
        from_state_dict(model_def, state) for state in (case.state, case.state_after)
    )
    arrays = {**case.inputs, "y": np.zeros_like(case.y)}
    remat = "none" if mesh == "one" else "full"
    is_wide = dtype == "float64"
    forward, gradient = (FLOAT64, FLOAT64) if is_wide else (FORWARD, GRADIENT)
    with jax.enable_x64(is_wide):
        options = {"weights": before, "arrays": arrays, "remat": remat}
        y, _, grads, new = run(block, mesh, dtype, **options)
    assert_same_state(new, after[1], forward, "the forward")
    moved = [
        float(np.abs(pair[name] - before[1][kind][path][name]).max())
        for kind in (SPECTRAL_NORM, BATCH_STATS)
        for path, pair in after[1][kind].items()
        for name in pair
    ]
    # Without norms there is no state to compare.
    assert not moved or max(moved) > 1e-5, "the forward must move the state"
    if output:
        assert_close(y, case.y, forward, "training forward")
    if output and (is_wide or not model_def.batch_stats):
        named = to_state_dict(model_def, grads, before[1])
        ours = {key: named[key] for key in case.gradients}
        assert_joint(ours, case.gradients, gradient, f"training on {mesh}")
    return case


def assert_samples_equal_credit(
    credit: Any, block: Section, name: str, dtype: str, tolerance: float
) -> None:
    """Asserts equal samples by all sampler steps, with the same noise at each step."""
    import torch

    from credit_torch_bridge.compare.credit_side import floats_of

    wide, made = getattr(torch, dtype), list[Any]()
    case = credit.credit_case(block, seed=1, dtype=wide, prepare=made.append)
    model_def, rng = build(block), np.random.default_rng(2)
    batch, _, _, height, width = case.y.shape
    shape = batch, height, width, model_def.output_channels
    drawn = {site: rng.normal(size=shape).astype(dtype) for site in ("start", "step")}

    def draw(shape: Any = None, tensor: Any = None, device: Any = None) -> Any:
        # CREDIT's process draws "start" once and then "step", as ours does.
        array = drawn["step" if shape is None else "start"]
        return torch.from_numpy(array).permute(0, 3, 1, 2)[:, :, None].clone()

    # Of log-uniform noise, whose factors are then 1.
    one = -np.log(SMALLEST_SIGMA) / np.log(LARGEST_SIGMA / SMALLEST_SIGMA)
    scales = {f"{site} scale": np.full(shape, one, dtype) for site in drawn}
    process = mock.patch.object(made[0], "randn_like_fn", draw)
    with jax.enable_x64(dtype == "float64"), process, floats_of(wide):
        x = torch.from_numpy(case.x)
        expected = made[0].eval().sample(x, batch_size=batch).numpy()
        policy = Precision.of(dtype)
        model = build_parallel_model(model_def, make_mesh(), mp_policy=policy)
        weights = jax.device_put(from_state_dict(model_def, case.state_after))
        noise = Noise(KEY, jax.tree.map(jnp.asarray, drawn | scales))
        ours = np.asarray(model.apply(*weights, {"x": jnp.asarray(case.x)}, noise))
    assert ours.shape == expected.shape
    assert_close(ours, expected, tolerance, f"{name}: sample")


def assert_round_trip(
    credit: Any, block: Section, theirs: Section | None = None
) -> None:
    """Asserts a bitwise round trip of a CREDIT model, in values, shapes, key order."""
    import torch

    model_def = build(block)
    model = credit.build_credit(theirs or block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, model_state = from_state_dict(model_def, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in model_def.param_specs.items()}
    assert sum(p.numel() for p in model.parameters()) == model_def.num_parameters
    assert set(model_state[BATCH_STATS]) == set(model_def.batch_stats)
    vectors = jax.tree.map(np.shape, model_state[SPECTRAL_NORM])
    assert vectors == {
        path: spectral_norm.spectral_norm_shapes(spec)
        for path, spec in model_def.matrices.items()
    }
    back = to_state_dict(model_def, params, model_state)
    assert list(back) == list(state), "the keys, or their order, differ"
    chex.assert_trees_all_equal(back, state, strict=True)
    names = [name for name, _ in model.named_parameters()]
    assert key_map_for(model_def).parameters.keys == names
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})


def batches(model_def: ModelDef, steps: int, batch: int, accumulate: int = 1) -> Any:
    """Yields the micro-batches of each step, on the host."""
    specs, rng = {**model_def.inputs, "y": model_def.output}, np.random.default_rng(0)
    for _ in range(steps):
        yield {
            name: rng.normal(size=(accumulate, *spec.shape(batch))).astype("f4")
            for name, spec in specs.items()
        }


def train(
    model: Any,
    optimizer: Any,
    steps: int,
    *,
    loss: Any = mse,
    batch: int = BATCH,
    weights: Any = None,
    **options: Any,
) -> tuple[Any, Any, list[Any]]:
    """Returns the states before and after some steps, and the report of each.

    Batches are equal on every mesh; all is on the host. `weights` are parameters and
    state on the host, by default those of `init`; options are those of the step.
    """
    step = make_train_step(model, optimizer, loss, **options)
    placed = place_weights(model, *weights) if weights else None
    ema = "ema_decay" in options
    state = init_state(model, optimizer, KEY, weights=placed, ema=ema)
    before, infos = jax.device_get(state), []
    order = dealt(batch, model.axes.num_data)
    accumulate = options.get("accumulate", 1)
    for fields in batches(model.model_def, steps, batch, accumulate):
        arrays = {name: x[:, order] for name, x in fields.items()}
        state, info = step(state, place_batch(arrays, model.mesh))
        infos.append(jax.device_get(info))
    return before, jax.device_get(state), infos
