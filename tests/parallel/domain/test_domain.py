"""Operations on sharded fields give equal results on 1, 2, 3, 4 and 8 shards."""

from functools import lru_cache

import jax
import numpy as np
import pytest

from credit_jax.kernels import use_implementation
from tests.parallel.domain.cases import CASES, CONVOLUTIONS, EMBEDDINGS
from tests.parallel.domain.convolution_cases import PATCHES, PERIODIC, TRANSPOSED
from tests.support import assert_close
from tests.support.sharded import Outcome, run_cases

VALUE, GRADIENT = 1e-6, 1e-5
DOUBLE = 1e-12

# Operations that have several implementations.
SEVERAL = CONVOLUTIONS | EMBEDDINGS | PATCHES | TRANSPOSED | PERIODIC
REST = {name: case for name, case in CASES.items() if name not in SEVERAL}


@lru_cache
def outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("cpu"):
        return run_cases(REST, num_shards) | several_outcomes(num_shards)


@lru_cache
def several_outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("cpu"):
        return run_cases(SEVERAL, num_shards)


@lru_cache
def plain_outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("xla"):
        return run_cases(SEVERAL, num_shards)


@lru_cache
def double_outcomes(num_shards: int) -> dict[str, Outcome]:
    with jax.enable_x64(True), use_implementation("cpu"):
        return run_cases(CASES, num_shards, np.float64)


def compare(
    name: str, actual: Outcome, expected: Outcome, value: float, gradient: float
) -> None:
    assert_close(actual.value, expected.value, value, f"{name}, value")
    for kind in ("fields", "weights"):
        pairs = zip(getattr(actual, kind), getattr(expected, kind), strict=True)
        for number, (a, e) in enumerate(pairs):
            assert_close(a, e, gradient, f"{name}, gradient of {kind} {number}")


# All cases with the same number of shards are one test, as they share programs, to
# compile fewer. On 3 shards they run in float64.
@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_sharded_is_single(num_shards, subtests):
    expected = outcomes(1)
    for name, actual in outcomes(num_shards).items():
        with subtests.test(name):
            what = f"{name} on {num_shards}"
            compare(what, actual, expected[name], VALUE, GRADIENT)
    assert outcomes(num_shards).keys() == CASES.keys()


@pytest.mark.parametrize("name", SEVERAL)
def test_plain_definitions_on_3_shards_are_those_of_one_device(name):
    actual, expected = plain_outcomes(3)[name], plain_outcomes(1)[name]
    compare(f"{name} on 3, plain", actual, expected, VALUE, GRADIENT)
    compare(f"{name}, CPU's own", several_outcomes(1)[name], expected, VALUE, GRADIENT)


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [3])
def test_sharded_is_single_in_float64(num_shards, subtests):
    expected = double_outcomes(1)
    for name, actual in double_outcomes(num_shards).items():
        with subtests.test(name):
            assert actual.value.dtype == np.float64
            what = f"{name} on {num_shards}, float64"
            compare(what, actual, expected[name], DOUBLE, DOUBLE)
    assert jax.numpy.zeros(1).dtype == np.float32, "float64 leaks into other tests"
