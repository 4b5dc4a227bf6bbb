"""torch.randperm without torch, for CREDIT's sample order."""

import numpy as np


def torch_randperm(num_items: int, seed: int) -> np.ndarray:
    """Returns the permutation of torch.randperm on the CPU for a seed.

    torch draws 32-bit numbers r_0, r_1, ... from the Mersenne Twister mt19937, seeded
    with the low 32 bits of the seed, and shuffles forward: for i = 0 .. n - 2, it swaps
    items i and i + r_i mod (n - i) (aten/src/ATen/native/TensorFactories.cpp,
    randperm_cpu). numpy's RandomState is the same generator with the same seeding.

    Args:
        num_items: n, below 2^32 / 20 (above it torch draws 64-bit numbers).
        seed: the seed of torch.Generator().manual_seed.

    Returns:
        (num_items,) int64.

    Raises:
        ValueError: num_items is negative or not below this limit.

    >>> torch_randperm(5, 1).tolist()
    [0, 4, 2, 3, 1]
    """
    if not 0 <= num_items < (2**32 - 1) // 20:
        raise ValueError(
            f"num_items must be from 0 to {(2**32 - 1) // 20 - 1}, got {num_items}"
        )
    draws = np.random.RandomState(seed & 0xFFFFFFFF).bytes(4 * max(num_items - 1, 0))
    left = num_items - np.arange(max(num_items - 1, 0))
    jumps = (np.frombuffer(draws, "<u4") % left).tolist()
    items = list(range(num_items))
    for i, jump in enumerate(jumps):
        items[i], items[i + jump] = items[i + jump], items[i]
    return np.array(items, dtype=np.int64)
