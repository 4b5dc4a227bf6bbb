"""Comparison of a credit_jax model that has CREDIT's weights with serial CREDIT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict, key_map_for, to_state_dict
from credit_jax.models.diffusion.process import LARGEST_SIGMA, SMALLEST_SIGMA
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.ops.compensated import joint_error
from credit_jax.parallel.params.precision import Precision
from tests.support import assert_close, assert_trees_close, make_mesh

FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-9

Tree = dict[str, np.ndarray]


def run_with_credits_weights(
    block: dict[str, Any],
    case: Any,
    implementation: str = "cpu",
    noise: Noise | None = None,
) -> tuple[Any, Any, Tree, Tree]:
    """Returns our prediction, loss, gradients by inputs and by CREDIT's parameters.

    Args:
        block: the `model` section.
        case: the `CreditCase` of the section.
        implementation: of the operations, as for `kernels.use_implementation`.
        noise: noise of models that draw noise.
    """
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
    block: dict[str, Any],
    name: str,
    implementation: str = "cpu",
    *,
    dtype: str = "float32",
    seed: int = 3,
) -> tuple[Tree, Tree]:
    """Asserts equal forward, loss and gradients by inputs and parameters.

    In float64, each array of the gradient; in float32, all parameters together.

    Args:
        credit, block, name: the reference, the `model` section and its name.
        implementation: as for `run_with_credits_weights`.
        dtype: of both sides.
        seed: of CREDIT's parameters and the input.

    Returns:
        Our gradients and CREDIT's, by CREDIT's names.
    """
    import torch

    from credit_torch_bridge.compare.credit_side import recorded_noise

    wide = getattr(torch, dtype)
    draw = mock.patch.object(torch, "randn", partial(torch.randn, dtype=wide))
    with draw, recorded_noise() as drawn:
        case = credit.credit_case(block, seed=seed, dtype=wide)
    with jax.enable_x64(dtype == "float64"):
        # What CREDIT draws last is the noise of the forward pass.
        sites = _noise_sites(build(block).config)
        arrays = dict(zip(sites, drawn[len(drawn) - len(sites) :], strict=True))
        noise = Noise(jax.random.key(0), jax.tree.map(jnp.asarray, arrays))
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
    error = joint_error(ours, case.gradients)
    print(f"{name}: gradient, all: relative error {error:.2e}")
    assert error <= gradient, f"{name}: gradient, all: {error:.3e} > {gradient:.0e}"
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
    credit: Any, block: dict[str, Any], *, output: bool = True
) -> Any:
    """Asserts equal output and model state of one training-mode forward.

    Args:
        credit, block: the reference and the `model` section.
        output: whether the output is compared, too.

    Returns:
        CREDIT's case.
    """
    case = credit.credit_case(block, seed=1, mode="train")
    model_def = build(block)
    params, before = jax.device_put(from_state_dict(model_def, case.state))
    _, after = from_state_dict(model_def, case.state_after)
    mesh = make_mesh()
    model = build_parallel_model(model_def, mesh)

    @jax.jit
    @partial(
        jax.shard_map, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    def forward(params: Any, model_state: Any, inputs: Any) -> Any:
        model_state = model.local_iterate(params, model_state)
        return model.local_training_forward(
            params, model_state, inputs, jax.random.key(0)
        )

    y, new = forward(params, before, jax.tree.map(jnp.asarray, case.inputs))
    new, after, before = (
        new[SPECTRAL_NORM] | new[BATCH_STATS],
        after[SPECTRAL_NORM] | after[BATCH_STATS],
        before[SPECTRAL_NORM] | before[BATCH_STATS],
    )
    assert_same_state(new, after, FORWARD, "the forward")
    moved = [
        float(np.abs(pair[name] - before[path][name]).max())
        for path, pair in after.items()
        for name in pair
    ]
    # Without norms there is no state to compare.
    assert not moved or max(moved) > 1e-5, "the forward must move the state"
    if output:
        assert_close(np.asarray(y), case.y, FORWARD, "training forward")
    return case


def assert_same_state(actual: Any, expected: Any, bound: float, what: str) -> None:
    """Asserts equal vectors and statistics of the same norms, each kind together."""
    assert actual.keys() == expected.keys(), f"{what}: another state"
    for name in sorted({name for arrays in expected.values() for name in arrays}):
        assert_trees_close(
            {path: arrays[name] for path, arrays in actual.items() if name in arrays},
            {path: arrays[name] for path, arrays in expected.items() if name in arrays},
            bound,
            f"{name} after {what}",
        )


@contextmanager
def same_noise(model: Any, arrays: Tree) -> Iterator[Noise]:
    """Makes CREDIT's process draw "start" once and then "step", as ours does.

    Args:
        model: CREDIT's process.
        arrays: NHWC by call site.
    """
    import torch

    kept = model.randn_like_fn

    def draw(shape: Any = None, tensor: Any = None, device: Any = None) -> Any:
        array = arrays["step"] if shape is None else arrays["start"]
        return torch.from_numpy(array).permute(0, 3, 1, 2)[:, :, None].clone()

    model.randn_like_fn = draw
    try:
        yield Noise(jax.random.key(0), jax.tree.map(jnp.asarray, arrays))
    finally:
        model.randn_like_fn = kept


def assert_samples_equal_credit(
    credit: Any, block: dict[str, Any], name: str, dtype: str, tolerance: float
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
    # Of log-uniform noise, whose factors are then 1.
    one = -np.log(SMALLEST_SIGMA) / np.log(LARGEST_SIGMA / SMALLEST_SIGMA)
    drawn |= {f"{site} scale": np.full(shape, one, dtype) for site in drawn}
    with (
        jax.enable_x64(dtype == "float64"),
        same_noise(made[0], drawn) as noise,
        floats_of(wide),
    ):
        x = torch.from_numpy(case.x)
        wanted = made[0].eval().sample(x, batch_size=batch).numpy()
        policy = Precision.of(dtype)
        model = build_parallel_model(model_def, make_mesh(), mp_policy=policy)
        params, state = jax.device_put(from_state_dict(model_def, case.state_after))
        ours = np.asarray(model.apply(params, state, {"x": jnp.asarray(case.x)}, noise))
    assert ours.shape == wanted.shape
    assert_close(ours, wanted, tolerance, f"{name}: sample")


def credits_parameters(where: str) -> dict[str, Any]:
    """Returns the defaults, or `empty`, of the constructor of a "module.Class"."""
    import inspect

    from tests.support.credit_modules import credit_attribute

    module, _, name = where.rpartition(".")
    parameters = inspect.signature(credit_attribute(module, name).__init__).parameters
    return {
        key: parameter.default
        for key, parameter in parameters.items()
        if key not in ("self", "args", "kwargs")
    }
