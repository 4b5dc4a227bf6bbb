"""dinosaur relies on rank promotion, which the tests forbid elsewhere (2026-11)."""

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def _rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield
