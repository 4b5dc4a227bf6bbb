"""Collectives of convolutions and pooling: none if each shard has its input rows."""

import re

import jax
import pytest

from tests.parallel.domain.convolution_cases import (
    adaptive,
    averaged,
    convolved,
    largest,
    patches,
    periodic,
    transposed,
)
from tests.support.sharded import Case, build_cases

NONE = (0, 0)
KINDS = (
    "collective-permute",
    "all-to-all",
    "all-gather",
    "all-reduce",
    "reduce-scatter",
)


def sent(case: Case, num_shards: int = 4) -> dict[str, int]:
    """Returns the collectives of one compiled forward, by kind."""
    program, arguments, _ = build_cases({"case": case}, num_shards, gradients=False)
    text = str(jax.jit(program).lower(*arguments).compile().as_text())
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


CASES = {
    "cubes": (patches(32, (2, 4, 4), others=(2, 8), dim=2), {}),
    "3 dims, 3x3x3": (
        convolved(
            16, (3, 3, 3), others=(3, 3), dim=2, padding=((1, 1), (1, 1), (1, 1))
        ),
        {"collective-permute": 2},
    ),
    "3 dims, other dims only": (
        convolved(16, (3, 1, 3), others=(3, 3), dim=2, padding="same"),
        {},
    ),
    "up 2": (transposed(16, (2, 2), stride=(2, 2)), {}),
    "up 2, kernel 4": (
        transposed(16, (4, 4), stride=(2, 2), padding=((1, 1), (1, 1))),
        {"collective-permute": 2},
    ),
    "up 2, kernel 3": (
        transposed(
            16,
            (3, 3),
            stride=(2, 2),
            padding=((1, 1), (1, 1)),
            output_padding=(1, 1),
        ),
        {"collective-permute": 1},
    ),
    "periodic": (periodic(16, (3, 3), 1), {"collective-permute": 2}),
    "average 2": (averaged(16, (2, 2)), {}),
    "maximum 3, stride 2": (
        largest(16, (3, 3), stride=(2, 2), padding=((1, 1), (1, 1))),
        {"collective-permute": 1},
    ),
    "adaptive, divides": (adaptive(16, (8, 1)), {}),
    "adaptive, columns only": (adaptive(16, (None, 1)), {}),
    "adaptive, wide windows": (adaptive(45, (2, 1)), {"reduce-scatter": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_messages(name):
    case, expected = CASES[name]
    assert sent(case) == expected
