"""Programs do not grow with the number of equal blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.speed.depth import (
    KEYS,
    NO_BLOCKS,
    WITH_ENCODER,
    at_two_depths,
    num_equations,
    trace,
)
from credit_jax.models.registry import MODELS

QUICK = ["swin"]


@pytest.mark.slow(but=QUICK)
@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("model", [name for name in MODELS if name not in NO_BLOCKS])
def test_the_training_step_is_as_large_at_any_depth(model: str) -> None:
    """On one device, with the plain definitions, as on GPUs and TPUs."""
    counts = {
        blocks: num_equations(trace(section).jaxpr.jaxpr)
        for blocks, section in at_two_depths(model).items()
    }
    print(f"{model}: {counts}")
    few, many = counts.values()
    assert few == many, f"equations by blocks of a stage: {counts}"


@pytest.mark.parametrize("model", MODELS)
def test_models_without_equal_blocks_have_no_key_for_their_number(model: str) -> None:
    keys = MODELS[model].config.model_fields.keys() & set(KEYS)
    assert len(keys) == (0 if model in (*NO_BLOCKS, *WITH_ENCODER) else 1)


def test_what_grows_is_counted() -> None:
    def count(function) -> int:
        return num_equations(jax.make_jaxpr(function)(jnp.ones(3)).jaxpr)

    def apart(x: jax.Array, blocks: int) -> jax.Array:
        for _ in range(blocks):
            x = jnp.sin(x)
        return x

    def loop(x: jax.Array, blocks: int, unroll: int = 1) -> jax.Array:
        def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(x), None

        return jax.lax.scan(body, x, length=blocks, unroll=unroll)[0]

    assert [count(lambda x, n=n: apart(x, n)) for n in (2, 4)] == [2, 4]
    few, many = (count(lambda x, n=n: loop(x, n)) for n in (2, 4))
    assert few == many
    assert count(lambda x: loop(x, 4, unroll=4)) > many
