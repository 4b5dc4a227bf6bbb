"""Running statistics of batch norms, which PyTorch keeps beside the norm's bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from credit_torch_bridge.checkpoint.key_plan import KeyEntry, KeyPlan
from credit_torch_bridge.models.arrangement import SAME, Arrangement
from credit_torch_bridge.problems import Shape


@dataclass(frozen=True)
class Count(Arrangement):
    """One whole number, 64 bits wide in PyTorch and 32 here."""

    def to_ours(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        return np.asarray(array).astype(np.int32)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).astype(np.int64)


COUNT = Count("->")


def with_statistics(plan: KeyPlan, norms: Mapping[str, int]) -> KeyPlan:
    """A plan that also has the running statistics of the batch norms.

    Args:
        plan: of the parameters, and the vectors of spectral norm.
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
    for torch, role in (("running_mean", "mean"), ("running_var", "variance")):
        yield KeyEntry(f"{key}.{torch}", role, path, None, SAME, (channels,))
    yield KeyEntry(f"{key}.num_batches_tracked", "count", path, None, COUNT, ())
