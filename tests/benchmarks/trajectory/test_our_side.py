"""The order in which batches of ranks are compared with those of one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.trajectory.our_side import _batch_error
from credit_jax.data import Sampler


def batches(batch_size: int, ranks: int) -> list[Any]:
    order = Sampler(
        num_samples=12,
        batch_size=batch_size,
        local_dp_ranks=tuple(range(ranks)),
        dp_size=ranks,
        seed=3,
        shuffle=True,
        keep_partial=False,
    )
    return [
        1.0 + index.reshape(-1, 1, 1, 1, 1).astype(float) for index in order.batches(0)
    ]


def test_ranks_take_samples_in_turn() -> None:
    rollout: Any = SimpleNamespace(num_steps=1, num_members=1)
    theirs = batches(batch_size=4, ranks=1)
    run: Any = SimpleNamespace(x=theirs, y=theirs)
    ours = batches(batch_size=2, ranks=2)
    assert len(ours) == len(theirs) == 3
    for index, array in enumerate(ours):
        batch: Any = SimpleNamespace(x=array, y=array)
        assert not np.array_equal(array, theirs[index]), "another order"
        assert _batch_error(batch, run, index, rollout, ranks=2) == 0
        assert _batch_error(batch, run, index, rollout, ranks=1) > 0
