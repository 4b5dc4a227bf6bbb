"""Comparison of a credit_jax model that has CREDIT's weights with serial CREDIT."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.noise import Noise
from credit_jax.parallel.params.precision import Precision
from tests.support import assert_close, assert_trees_close, make_mesh

FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-9

Tree = dict[str, np.ndarray]


def run_with_credits_weights(
    block: dict[str, Any],
    case: Any,
    implementation: str = "cpu",
    noise: Noise | None = None,
) -> tuple[Any, Any, Any, Tree]:
    """Returns our prediction, loss and gradients (by CREDIT's names) from its weights.

    Args:
        block: the `model` section.
        case: the `CreditCase` of the section.
        implementation: of the operations, as for `kernels.use_implementation`.
        noise: noise of models that draw noise.
    """
    model_def = build(block)
    params, model_state = jax.device_put(from_state_dict(model_def, case.state))
    name = str(case.x.dtype)

    def loss(params: Any, x: Any) -> Any:
        weights = spectral_norm.normalize(
            params, model_state[SPECTRAL_NORM], model_def.matrices
        )
        context = Context(precision=Precision.of(name), noise=noise)
        y = model_def.apply(weights, {"x": x}, context, model_state[BATCH_STATS])
        return (y**2).mean(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    with use_implementation(implementation):
        (value, y), (by_param, by_input) = step(params, jnp.asarray(case.x))
    named = to_state_dict(model_def, *jax.device_get((by_param, model_state)))
    return np.asarray(y), np.asarray(value), np.asarray(by_input), named


def prediction_with_credits_weights(block: dict[str, Any], case: Any) -> np.ndarray:
    """Returns our prediction with CREDIT's weights, by a program without gradients."""
    model_def = build(block)
    params, model_state = jax.device_put(from_state_dict(model_def, case.state))

    @jax.jit
    def forward(params: Any, x: Any) -> Any:
        weights = spectral_norm.normalize(
            params, model_state[SPECTRAL_NORM], model_def.matrices
        )
        context = Context(precision=Precision.of(str(case.x.dtype)))
        return model_def.apply(weights, {"x": x}, context, model_state[BATCH_STATS])

    with use_implementation("cpu"):
        return np.asarray(forward(params, jnp.asarray(case.x)))


def assert_equals_credit(
    credit: Any,
    block: dict[str, Any],
    name: str,
    implementation: str = "cpu",
    noise: Noise | None = None,
    *,
    seed: int = 3,
) -> tuple[Tree, Tree]:
    """Asserts equal forward, loss and gradients by input and parameters, in float32.

    Args:
        credit, block, name: the reference, the `model` section and its name.
        implementation, noise: as for `run_with_credits_weights`.
        seed: of CREDIT's parameters and the input.

    Returns:
        Our gradients and CREDIT's, by CREDIT's names.
    """
    case = credit.credit_case(block, seed=seed)
    y, value, by_input, gradients = run_with_credits_weights(
        block, case, implementation, noise
    )
    assert y.shape == case.y.shape, f"{y.shape}, CREDIT gives {case.y.shape}"
    assert_close(y, case.y, FORWARD, f"{name}: forward")
    assert_close(value, case.loss, FORWARD, f"{name}: loss")
    assert_close(by_input, case.x_gradient, GRADIENT, f"{name}: gradient of the input")
    assert gradients.keys() >= case.gradients.keys(), "every gradient must be there"
    ours = {key: gradients[key] for key in case.gradients}
    assert_close(
        _joined(ours), _joined(case.gradients), GRADIENT, f"{name}: gradient, all"
    )
    return ours, case.gradients


def _joined(arrays: Tree) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays.values()])


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
        y, value, by_input, gradients = run_with_credits_weights(
            block, case, implementation, noise
        )
    assert y.dtype == np.float64, f"the forward ran in {y.dtype}"
    assert y.shape == case.y.shape, f"{y.shape}, CREDIT gives {case.y.shape}"
    assert_close(y, case.y, FLOAT64, f"{name}: forward")
    assert_close(value, case.loss, FLOAT64, f"{name}: loss")
    assert_close(by_input, case.x_gradient, FLOAT64, f"{name}: gradient of the input")
    assert gradients.keys() >= case.gradients.keys(), "every gradient must be there"
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, FLOAT64, f"{name}: gradients")
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
    def forward(params: Any, model_state: Any, x: Any) -> Any:
        model_state = model.local_iterate(params, model_state)
        return model.local_training_forward(
            params, model_state, {"x": x}, jax.random.key(0)
        )

    y, new = forward(params, before, jnp.asarray(case.x))
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
    moved = max(
        float(np.abs(pair[name] - before[path][name]).max())
        for path, pair in after.items()
        for name in pair
    )
    assert moved > 1e-5, "the forward must move the state for this test to say much"
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
