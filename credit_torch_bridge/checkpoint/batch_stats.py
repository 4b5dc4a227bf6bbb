"""Running statistics of batch norms, which PyTorch has next to the norm's bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from credit_jax.nn.model_state import BATCH_STATS
from credit_torch_bridge.checkpoint.key_plan import KeyEntry, KeyPlan
from credit_torch_bridge.models.arrangement import SAME, Arrangement
from credit_torch_bridge.problems import Shape


@dataclass(frozen=True)
class Count(Arrangement):
    """A number of batches: int64 in PyTorch, int32 here."""

    def to_ours(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        return np.asarray(array).astype(np.int32)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).astype(np.int64)


COUNT = Count("->")


def with_statistics(plan: KeyPlan, norms: Mapping[str, int]) -> KeyPlan:
    """Adds the running statistics of batch norms to a plan.

    Args:
        plan: of the parameters and of spectral norm.
        norms: channels of every batch norm, by path.
    """
    after = {f"{path}/bias": path for path in norms}
    entries: list[KeyEntry] = []
    for entry in plan.entries:
        entries.append(entry)
        if entry.path in after:
            path = after[entry.path]
            entries += _statistics(entry.key.removesuffix(".bias"), path, norms[path])
    return replace(plan, entries=tuple(entries))


def _statistics(key: str, path: str, channels: int) -> Iterator[KeyEntry]:
    def entry(name: str, leaf: str, arrangement: Arrangement, shape: Shape) -> KeyEntry:
        return KeyEntry(
            f"{key}.{name}", path, arrangement, shape, None, BATCH_STATS, leaf
        )

    yield entry("running_mean", "mean", SAME, (channels,))
    yield entry("running_var", "variance", SAME, (channels,))
    yield entry("num_batches_tracked", "count", COUNT, ())
