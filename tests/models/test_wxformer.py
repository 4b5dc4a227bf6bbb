"""WXFormer against serial CREDIT with the same weights: values and all gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.parallel.precision import Precision
from credit_torch_bridge.state_dict import from_state_dict, to_state_dict
from tests.models.cases import CASES
from tests.support import assert_close, assert_trees_close

FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-9


Tree = dict[str, np.ndarray]


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(credit: Any, name: str) -> None:
    case = credit.credit_case(CASES[name], seed=3)
    y, value, by_input, gradients = _run(CASES[name], case)
    assert y.shape == case.y.shape, f"{y.shape}, CREDIT gives {case.y.shape}"
    assert_close(y, case.y, FORWARD, f"{name}: forward")
    assert_close(value, case.loss, FORWARD, f"{name}: loss")
    assert_close(by_input, case.x_gradient, GRADIENT, f"{name}: gradient of the input")
    assert gradients.keys() >= case.gradients.keys(), "every gradient must be there"
    ours = np.concatenate([gradients[key].ravel() for key in case.gradients])
    credits = np.concatenate([g.ravel() for g in case.gradients.values()])
    assert_close(ours, credits, GRADIENT, f"{name}: gradient of all parameters")


@pytest.mark.parametrize("name", ["earth", "frames"])
def test_equals_credit_array_by_array_in_float64(credit: Any, name: str) -> None:
    """Where rounding is out of the way, every single gradient must agree."""
    import torch

    case = credit.credit_case(CASES[name], seed=3, dtype=torch.float64)
    with jax.enable_x64(True):
        y, _, by_input, gradients = _run(CASES[name], case)
    assert y.dtype == np.float64, f"the forward ran in {y.dtype}"
    assert_close(y, case.y, FLOAT64, f"{name}: forward")
    assert_close(by_input, case.x_gradient, FLOAT64, f"{name}: gradient of the input")
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, FLOAT64, f"{name}: gradients")


def _run(block: dict[str, Any], case: Any) -> tuple[Any, Any, Any, Tree]:
    """Our prediction, loss and gradients with CREDIT's weights, by CREDIT's names."""
    architecture = build(block)
    params, vectors = jax.device_put(from_state_dict(architecture, case.state))
    name = str(case.x.dtype)

    def loss(params: Any, x: Any) -> Any:
        weights = spectral_norm.normalise(params, vectors, architecture.matrices)
        y = architecture.apply(weights, x, Context(precision=Precision.of(name)))
        return (y**2).mean(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, y), (by_param, by_input) = step(params, jnp.asarray(case.x))
    named = to_state_dict(architecture, *jax.device_get((by_param, vectors)))
    return np.asarray(y), np.asarray(value), np.asarray(by_input), named


def test_training_forward_iterates_once_like_credit(credit: Any) -> None:
    """u and v after one training-mode forward, and the output with the new ones."""
    case = credit.credit_case(CASES["earth"], seed=1, mode="train")
    architecture = build(CASES["earth"])
    params, before = jax.device_put(from_state_dict(architecture, case.state))
    _, after = from_state_dict(architecture, case.state_after)

    @jax.jit
    def forward(params: Any, vectors: Any, x: Any) -> Any:
        new = spectral_norm.iterate(params, vectors, architecture.matrices)
        weights = spectral_norm.normalise(params, new, architecture.matrices)
        return new, architecture.apply(weights, x, Context())

    new, y = forward(params, before, jnp.asarray(case.x))
    for side in ("u", "v"):
        assert_trees_close(
            {path: pair[side] for path, pair in new.items()},
            {path: pair[side] for path, pair in after.items()},
            FORWARD,
            f"vectors {side}",
        )
    moved = max(
        float(np.abs(after[path]["u"] - before[path]["u"]).max()) for path in after
    )
    assert moved > 1e-5, "the iteration must move the vectors for this test to say much"
    assert_close(y, case.y, FORWARD, "training forward")


def test_dropout_noise_is_scaled() -> None:
    """The mean over keys of the output with dropout is near the one without."""
    block = {**CASES["plain"], "attn_dropout": 0.1, "ff_dropout": 0.1}
    architecture = build(block)
    params = jax.jit(architecture.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (1, 7, 1, 32, 32))

    @jax.jit
    def forward(key: Any) -> Any:
        return architecture.apply(params, x, Context(key=key))

    still = jax.jit(lambda: architecture.apply(params, x, Context()))()
    noisy = np.stack([forward(key) for key in jax.random.split(jax.random.key(1), 32)])
    spread = float(noisy.std(0).mean())
    shift = float(np.abs(noisy.mean(0) - still).mean())
    print(f"dropout: spread {spread:.3f}, shift of the mean {shift:.3f}")
    assert spread > 1e-3, "dropout must change the output"
    assert shift < spread, f"mean moved by {shift:.3f} with a spread of {spread:.3f}"
