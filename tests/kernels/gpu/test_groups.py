"""The number of groups of rows of a kernel gradient."""

from __future__ import annotations

import pytest

from credit_jax.kernels.gpu.groups import num_groups


@pytest.mark.parametrize(
    ("rows", "channels", "out", "groups"),
    [
        # A few tiles: enough groups that each multiprocessor has a tile.
        (288_000, 128, 384, 44),
        (18_000, 512, 2048, 2),
        # The tiles fill a GPU.
        (4500, 1024, 4096, 1),
        # On an eighth of the rows sums of groups would move more than the factors.
        (2250, 512, 2048, 1),
        (7, 8, 8, 1),
    ],
)
def test_groups_of_wxformer(rows: int, channels: int, out: int, groups: int) -> None:
    assert num_groups(rows, channels, out, itemsize=2) == groups


def test_candidates_alone_are_taken() -> None:
    divisors = [g for g in range(1, 100) if 288_000 % g == 0]
    found = num_groups(288_000, 128, 384, itemsize=2, candidates=divisors)
    assert found == 40
