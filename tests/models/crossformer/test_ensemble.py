"""CREDIT's crossformer with noise against serial CREDIT with the same noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build, parse_model
from credit_jax.nn.context import Context
from credit_jax.nn.noise import Noise
from tests.models.crossformer.cases import ENSEMBLE_CASES as CASES
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_credit_in_float64,
    credits_defaults,
)

BLOCK = CASES["frozen"]
BATCH = 2


def drawn(block: dict[str, Any], dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Returns a forward pass's noise by call site, in the order of CREDIT's calls."""
    config, rng = build(block).config, np.random.default_rng(4)
    stages, size = config.geometry().stages, (BATCH, config.noise_latent_dim)
    sites = [f"encoder {i}" for i in range(3)] if config.encoder_noise else []
    sites += [f"decoder {i}" for i in range(3)]
    found = {"latent": rng.normal(size=size)} if config.correlated else {}
    for site in sites:
        kind, index = site.split()
        stage = stages[int(index) if kind == "encoder" else 2 - int(index)]
        if not config.correlated:
            found[f"{site} latent"] = rng.normal(size=size)
        shape = BATCH, stage.height, stage.width, stage.channels
        found[site] = rng.normal(size=shape)
    return {name: array.astype(dtype) for name, array in found.items()}


@contextmanager
def same_noise(arrays: dict[str, np.ndarray]) -> Iterator[Noise]:
    """Makes CREDIT's forward passes draw these arrays in turn; yields a `Noise`."""
    import torch

    draw, calls = torch.randn, 0
    given = [torch.from_numpy(a) for a in arrays.values()]
    given = [a.permute(0, 3, 1, 2) if a.ndim == 4 else a for a in given]

    def randn(*size: Any, generator: Any = None, **options: Any) -> Any:
        nonlocal calls
        if generator is not None:
            return draw(*size, generator=generator, **options)
        array = given[calls % len(given)]
        calls += 1
        assert tuple(size) == tuple(array.shape), f"{size}, expected {array.shape}"
        return array

    torch.randn = randn
    try:
        with jax.enable_x64(True):
            ours = {name: jnp.asarray(array) for name, array in arrays.items()}
        yield Noise(jax.random.key(0), ours)
    finally:
        torch.randn = draw


# Each case is one program: in float64, where every array is compared, or in float32.
def test_equals_credit(credit: Any) -> None:
    block = CASES["trained"]
    with same_noise(drawn(block)) as noise:
        _, theirs = assert_equals_credit(credit, block, "trained", noise=noise)
    assert not all("noise" in key for key in theirs)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    with same_noise(drawn(BLOCK)) as noise:
        _, theirs = assert_equals_credit(credit, BLOCK, "frozen, plain", "xla", noise)
    assert all("noise" in key for key in theirs)


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    block = CASES["correlated"]
    with same_noise(drawn(block, np.float64)) as noise:
        assert_equals_credit_in_float64(credit, block, "correlated", noise=noise)


def test_what_is_trained_is_what_credit_trains(credit: Any) -> None:
    for name, block in CASES.items():
        model = credit.build_credit(block)
        theirs = sum(p.numel() for p in model.parameters() if p.requires_grad)
        ours = sum(spec.size for spec in build(block).trainable.values())
        assert ours == theirs, name


@cache
def _forward() -> tuple[ModelDef, Any]:
    model_def = build(BLOCK)
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), model_def.inputs["x"].shape(BATCH))
    x = x.at[1].set(x[0])

    @jax.jit
    def forward(key: Any) -> Any:
        return model_def.apply(params, {"x": x}, Context(noise=Noise(key)))

    return model_def, forward


@pytest.mark.slow
def test_another_key_is_another_member() -> None:
    """In evaluation, too; members along the batch dim have different noise."""
    _, forward = _forward()
    first, again, other = (np.asarray(forward(jax.random.key(i))) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).mean() > 1e-5
    assert np.abs(first[0] - first[1]).mean() > 1e-5


def test_a_forward_without_noise_is_refused() -> None:
    model_def, _ = _forward()
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jnp.zeros(model_def.inputs["x"].shape(1))
    with pytest.raises(ValueError, match=r"draws noise .* pass Noise"):
        model_def.apply(params, {"x": x}, Context())


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    theirs = credits_defaults(
        "models.wxformer.crossformer_ensemble", "CrossFormerWithNoise"
    )
    config = parse_model({"type": "crossformer-ensemble", "frames": 1})
    assert {key: getattr(config, key) for key in theirs} == theirs


# changes of the section, the error
WRONG = {
    "frames": ({"frames": 2}, "model.frames is 2; expected 1"),
    "output frames": ({"output_frames": 2}, "model.output_frames is 2; expected 1"),
    "patches": (
        {"patch_height": 2, "patch_width": 2, "image_height": 64, "image_width": 64},
        "patch_width are 2 and 2; expected 1",
    ),
    "channels": (
        {"dim": [8, 16, 16, 64]},
        r"model.dim\[2\] is 16; expected 32, dim\[3\] / 2",
    ),
    "unknown key": ({"noise_dim": 3}, "noise_dim: unknown key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BLOCK, **change})


@pytest.mark.parametrize("key", ["pretrained_weights", "noise_scheduler"])
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    with pytest.warns(UserWarning, match=f"model.{key} .CREDIT"):
        parse_model({**BLOCK, key: "x"})
