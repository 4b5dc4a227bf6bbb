"""Comparison of a credit_jax model that has CREDIT's weights with serial CREDIT."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.diffusion.process import TIME
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.noise import Noise
from credit_jax.ops.relative_error import joint_error
from credit_jax.parallel.params.precision import Precision
from tests.support import assert_close, assert_trees_close, make_mesh

FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-9

BATCH = 2

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


@dataclass(frozen=True)
class NetworkCase:
    """Results of CREDIT's network; see `tests.reference.cases.CreditCase`."""

    model: Any
    inputs: Tree
    y: np.ndarray
    loss: float
    gradients: Tree
    by_input: Tree
    state: Tree
    state_after: Tree


def inputs_of(block: dict[str, Any], batch: int, dtype: str) -> Tree:
    """Returns random inputs of the network, with noise steps from the last one down."""
    model_def, rng = build(block), np.random.default_rng(0)
    specs = model_def.network_inputs
    arrays: Tree = {k: rng.normal(size=s.shape(batch)) for k, s in specs.items()}
    if model_def.process is not None:
        last = model_def.process.num_steps - 1
        arrays[TIME] = (last - 7.0 * np.arange(batch) % last)[:, None]
    return {name: array.astype(dtype) for name, array in arrays.items()}


def _numpy(model: Any) -> Tree:
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}


@dataclass(frozen=True)
class Networks:
    """Cases of networks of any inputs, such as those of diffusion processes.

    Attributes:
        credit: the module `tests.reference.cases`.
    """

    credit: Any

    def credit_case(
        self,
        block: dict[str, Any],
        seed: int = 1,
        mode: str = "eval",
        dtype: Any = None,
    ) -> NetworkCase:
        """Runs a forward and backward pass of CREDIT's network, or of its process's."""

        import torch

        from credit_torch_bridge.compare.credit_side import (
            call_network,
            cast_credit,
            floats_of,
            network_of,
            share_edges,
        )

        del seed
        wide = dtype or torch.float32
        model = self.credit.build_credit(block, seed=1)
        share_edges(model, block)
        cast_credit(model, wide)
        arrays = inputs_of(block, BATCH, str(wide).removeprefix("torch."))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

        generator = torch.Generator().manual_seed(0)
        with floats_of(wide):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=wide))
                for _ in range(5):
                    model.train()
                    call_network(network_of(model), tensors)
            model.train(mode == "train")
            state = _numpy(model)
            moved = [name for name in tensors if name != TIME]
            for name in moved:
                tensors[name].requires_grad_()
            y = call_network(network_of(model), tensors)
            loss = (y**2).mean()
            loss.backward()
        named = model.named_parameters()
        return NetworkCase(
            model,
            arrays,
            y.detach().numpy(),
            float(loss.detach()),
            {k: p.grad.numpy() for k, p in named if p.grad is not None},
            {name: np.asarray(tensors[name].grad) for name in moved},
            state,
            _numpy(model),
        )


def assert_equals_credit(
    credit: Any,
    block: dict[str, Any],
    name: str,
    implementation: str = "cpu",
    noise: Noise | None = None,
    *,
    seed: int = 3,
) -> tuple[Tree, Tree]:
    """Asserts equal forward, loss and gradients by inputs and parameters, in float32.

    Args:
        credit, block, name: the reference, the `model` section and its name.
        implementation, noise: as for `run_with_credits_weights`.
        seed: of CREDIT's parameters and the input.

    Returns:
        Our gradients and CREDIT's, by CREDIT's names.
    """
    case = credit.credit_case(block, seed=seed)
    return _compare(case, block, name, implementation, noise)


def assert_equals_credit_in_float64(
    credit: Any,
    block: dict[str, Any],
    name: str,
    implementation: str = "cpu",
    noise: Noise | None = None,
) -> tuple[Tree, Tree]:
    """Asserts that every gradient array equals CREDIT's, in float64.

    Returns:
        Our gradients and CREDIT's, by CREDIT's names.
    """
    import torch

    case = credit.credit_case(block, seed=3, dtype=torch.float64)
    with jax.enable_x64(True):
        return _compare(case, block, name, implementation, noise)


def _compare(
    case: Any,
    block: dict[str, Any],
    name: str,
    implementation: str,
    noise: Noise | None,
) -> tuple[Tree, Tree]:
    y, value, by_input, named = run_with_credits_weights(
        block, case, implementation, noise
    )
    is_wide = case.y.dtype == np.float64
    forward, gradient = (FLOAT64, FLOAT64) if is_wide else (FORWARD, GRADIENT)
    assert y.dtype == case.y.dtype, f"the forward ran in {y.dtype}"
    assert y.shape == case.y.shape, f"{y.shape}, CREDIT gives {case.y.shape}"
    assert_close(y, case.y, forward, f"{name}: forward")
    assert_close(value, case.loss, forward, f"{name}: loss")
    for key, expected in case.by_input.items():
        assert_close(by_input[key], expected, gradient, f"{name}: gradient of {key}")
    assert named.keys() >= case.gradients.keys(), "every gradient must be there"
    ours = {key: named[key] for key in case.gradients}
    if is_wide:
        assert_trees_close(ours, case.gradients, gradient, f"{name}: gradients")
    error = joint_error(ours, case.gradients)
    print(f"{name}: gradient, all: relative error {error:.2e}")
    assert error <= gradient, f"{name}: gradient, all: {error:.3e} > {gradient:.0e}"
    return ours, case.gradients


def assert_training_forward_equals_credit(credit: Any, block: dict[str, Any]) -> None:
    """Asserts equal output and model state of one training-mode forward."""
    case, y = assert_training_state_equals_credit(credit, block)
    assert_close(y, case.y, FORWARD, "training forward")


def assert_training_state_equals_credit(
    credit: Any, block: dict[str, Any]
) -> tuple[Any, np.ndarray]:
    """Asserts equal model state after one training-mode forward.

    Returns:
        CREDIT's case, and our output.
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
    assert new.keys() == after.keys(), "the state must be of the same norms"
    for name in sorted({name for pair in after.values() for name in pair}):
        assert_trees_close(
            {path: pair[name] for path, pair in new.items() if name in pair},
            {path: pair[name] for path, pair in after.items() if name in pair},
            FORWARD,
            f"{name} after the forward",
        )
    moved = [
        float(np.abs(pair[name] - before[path][name]).max())
        for path, pair in after.items()
        for name in pair
    ]
    # Without norms there is no state to compare.
    assert not moved or max(moved) > 1e-5, "the forward must move the state"
    return case, np.asarray(y)


def credits_defaults(module: str, name: str) -> dict[str, Any]:
    """Returns the constructor defaults of a CREDIT class."""
    import inspect

    from tests.support.credit_modules import credit_attribute

    parameters = inspect.signature(credit_attribute(module, name).__init__).parameters
    return {
        key: parameter.default
        for key, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
