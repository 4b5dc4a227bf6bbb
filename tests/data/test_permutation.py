"""The NumPy implementation of `torch.randperm`."""

import numpy as np
import pytest

from credit_jax.data.permutation import torch_randperm

SEEDS = (0, 1, 42, 1000, 2**31, 2**32 - 1, 2**32 + 5, 2**40 + 3, -1)


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 10, 57, 623, 624, 625, 20001])
def test_equals_torch(torch, num_items):
    for seed in SEEDS:
        generator = torch.Generator()
        generator.manual_seed(seed)
        expected = torch.randperm(num_items, generator=generator).numpy()
        actual = torch_randperm(num_items, seed)
        assert np.array_equal(actual, expected), f"seed {seed}"


def test_is_a_permutation():
    assert sorted(torch_randperm(1000, 3).tolist()) == list(range(1000))


@pytest.mark.parametrize("num_items", [-1, 2**32 // 20])
def test_refuses_what_torch_does_otherwise(num_items):
    with pytest.raises(ValueError, match=f"got {num_items}"):
        torch_randperm(num_items, 0)
