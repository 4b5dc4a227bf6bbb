"""Comparison of diffusion networks and their process with serial CREDIT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.diffusion.process import (
    LARGEST_SIGMA,
    NOISED,
    SMALLEST_SIGMA,
    TIME,
)
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.noise import Noise
from credit_jax.parallel.params.precision import Precision
from tests.models.parity import FLOAT64, FORWARD, GRADIENT
from tests.support import assert_close, assert_trees_close, make_mesh

BATCH = 2
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Theirs:
    """Results of CREDIT's network; see `tests.reference.cases.CreditCase`."""

    model: Any
    inputs: Arrays
    y: np.ndarray
    gradients: Arrays
    by_input: Arrays
    state: Arrays
    state_after: Arrays


def inputs_of(block: dict[str, Any], batch: int, dtype: str) -> Arrays:
    """Returns random inputs of the network, with noise steps from the last one down."""
    model_def, rng = build(block), np.random.default_rng(0)
    specs = model_def.network_inputs
    arrays = {k: rng.normal(size=s.shape(batch)) for k, s in specs.items()}
    last = model_def.process.num_steps - 1  # pyright: ignore
    arrays[TIME] = (last - 7 * np.arange(batch) % last)[:, None]
    return {name: array.astype(dtype) for name, array in arrays.items()}


def _numpy(model: Any) -> Arrays:
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}


def run_credit(
    credit: Any, block: dict[str, Any], dtype: str = "float32", mode: str = "eval"
) -> Theirs:
    """Runs a forward and backward pass of CREDIT's network within its process."""

    import torch

    from credit_torch_bridge.compare.credit_side import floats_of

    wide = getattr(torch, dtype)
    model = credit.build_credit(block, seed=1).to(wide)
    arrays = inputs_of(block, BATCH, dtype)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def network() -> Any:
        x, time = tensors[NOISED], tensors[TIME][:, 0]
        return model.model(x, time, None, tensors["x"])

    generator = torch.Generator().manual_seed(0)
    with floats_of(wide):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=wide))
            for _ in range(5):
                model.train()
                network()
        model.train(mode == "train")
        state = _numpy(model)
        for name in (NOISED, "x"):
            tensors[name].requires_grad_()
        y = network()
        (y**2).mean().backward()
    named = model.named_parameters()
    return Theirs(
        model,
        arrays,
        y.detach().numpy(),
        {k: p.grad.numpy() for k, p in named if p.grad is not None},
        {name: tensors[name].grad.numpy() for name in (NOISED, "x")},
        state,
        _numpy(model),
    )


def run_ours(
    model_def: ModelDef, theirs: Theirs, implementation: str = "cpu"
) -> tuple[np.ndarray, Arrays, Arrays]:
    """Returns our prediction, gradients by CREDIT's names, gradients by the inputs."""
    params, model_state = jax.device_put(from_state_dict(model_def, theirs.state))
    inputs = jax.tree.map(jnp.asarray, theirs.inputs)
    dtype = str(theirs.y.dtype)

    def loss(params: Any, inputs: Any) -> Any:
        vectors = model_state[SPECTRAL_NORM]
        weights = spectral_norm.normalize(params, vectors, model_def.matrices)
        context = Context(precision=Precision.of(dtype))
        y = model_def.apply(weights, inputs, context, model_state[BATCH_STATS])
        return (y**2).mean(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    with use_implementation(implementation):
        (_, y), (by_param, by_input) = step(params, inputs)
    named = to_state_dict(model_def, *jax.device_get((by_param, model_state)))
    return np.asarray(y), named, jax.device_get(by_input)


def assert_equals_credit(
    credit: Any, block: dict[str, Any], name: str, implementation: str = "cpu"
) -> None:
    """Asserts equal forward and gradients by inputs and all parameters, in float32."""
    theirs = run_credit(credit, block)
    y, named, by_input = run_ours(build(block), theirs, implementation)
    assert_close(y, theirs.y, FORWARD, f"{name}: forward")
    for key, gradient in theirs.by_input.items():
        assert_close(by_input[key], gradient, GRADIENT, f"{name}: gradient of {key}")
    joined = [
        np.concatenate([grads[key].ravel() for key in theirs.gradients])
        for grads in (named, theirs.gradients)
    ]
    assert_close(*joined, GRADIENT, f"{name}: gradient, all")


def assert_equals_credit_in_float64(
    credit: Any, block: dict[str, Any], name: str
) -> None:
    """Asserts that every array of the gradient equals CREDIT's, in float64."""
    theirs = run_credit(credit, block, "float64")
    with jax.enable_x64(True):
        y, named, by_input = run_ours(build(block), theirs)
    assert y.dtype == np.float64, f"the forward ran in {y.dtype}"
    assert_close(y, theirs.y, FLOAT64, f"{name}: forward")
    ours = {key: named[key] for key in theirs.gradients}
    assert_trees_close(ours, theirs.gradients, FLOAT64, f"{name}: gradients")
    ours = {key: by_input[key] for key in theirs.by_input}
    assert_trees_close(ours, theirs.by_input, FLOAT64, f"{name}: of the inputs")


def assert_training_forward_equals_credit(credit: Any, block: dict[str, Any]) -> None:
    """Asserts equal output and model state of a training-mode forward."""
    theirs = run_credit(credit, block, mode="train")
    model_def = build(block)
    params, before = jax.device_put(from_state_dict(model_def, theirs.state))
    _, wanted = from_state_dict(model_def, theirs.state_after)
    model = build_parallel_model(model_def, make_mesh())

    def forward(params: Any, state: Any, inputs: Any) -> Any:
        state = model.local_iterate(params, state)
        return model.local_training_forward(params, state, inputs, jax.random.key(0))

    run = model.shard_map(
        forward,
        batch_specs=jax.tree.map(lambda _: jax.P(), theirs.inputs),
        out_specs=(jax.P(), model.model_state_specs),
    )
    y, after = run(params, before, theirs.inputs)
    assert_close(np.asarray(y), theirs.y, FORWARD, "training forward")
    # Without spectral norm there is no state to compare.
    assert after[SPECTRAL_NORM].keys() == wanted[SPECTRAL_NORM].keys()
    for name in ("u", "v") if wanted[SPECTRAL_NORM] else ():
        ours, other = (
            {
                path: np.asarray(pair[name])
                for path, pair in state[SPECTRAL_NORM].items()
            }
            for state in (after, wanted)
        )
        assert_trees_close(ours, other, FORWARD, f"{name} after the forward")


@contextmanager
def same_noise(model: Any, arrays: Arrays) -> Iterator[Noise]:
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

    theirs = run_credit(credit, block, dtype)
    model_def, rng = build(block), np.random.default_rng(2)
    batch, _, _, height, width = theirs.y.shape
    shape = batch, height, width, model_def.output_channels
    drawn = {site: rng.normal(size=shape).astype(dtype) for site in ("start", "step")}
    # Of log-uniform noise, whose factors are then 1.
    one = -np.log(SMALLEST_SIGMA) / np.log(LARGEST_SIGMA / SMALLEST_SIGMA)
    drawn |= {f"{site} scale": np.full(shape, one, dtype) for site in drawn}
    with same_noise(theirs.model, drawn) as noise, floats_of(getattr(torch, dtype)):
        x = torch.from_numpy(theirs.inputs["x"])
        wanted = theirs.model.eval().sample(x, batch_size=batch).numpy()
    model = build_parallel_model(model_def, make_mesh(), mp_policy=Precision.of(dtype))
    params, state = jax.device_put(from_state_dict(model_def, theirs.state_after))
    ours = model.apply(params, state, {"x": jnp.asarray(theirs.inputs["x"])}, noise)
    assert np.asarray(ours).shape == wanted.shape
    assert_close(np.asarray(ours), wanted, tolerance, f"{name}: sample")
