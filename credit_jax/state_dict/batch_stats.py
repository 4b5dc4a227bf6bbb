"""Running statistics of batch norms, which follow the norm's bias in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from credit_jax.nn.model_state import BATCH_STATS
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.arrangement import SAME, Arrangement
from credit_jax.state_dict.key_map import KeyEntry, KeyMap
from credit_jax.state_dict.problems import Shape


@dataclass(frozen=True)
class Count(Arrangement):
    """A number of batches: int64 in PyTorch, int32 in credit_jax."""

    def to_ours(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        return np.asarray(array).astype(np.int32)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).astype(np.int64)


COUNT = Count("->")


# PyTorch's name, ours, and the arrangement of each array.
_ARRAYS = (
    ("running_mean", "mean", SAME),
    ("running_var", "variance", SAME),
    ("num_batches_tracked", "count", COUNT),
)


def with_statistics(
    key_map: KeyMap, batch_stats: Mapping[str, Mapping[str, ParamSpec]]
) -> KeyMap:
    """Adds the running statistics of batch norms to a key map.

    Args:
        key_map: key map of the parameters and of spectral norm.
        batch_stats: specs of the arrays of every batch norm, by path and name.
    """
    after = {f"{path}/bias": path for path in batch_stats}
    entries: list[KeyEntry] = []
    for entry in key_map.entries:
        entries.append(entry)
        if entry.path in after:
            path = after[entry.path]
            entries += _statistics(entry, path, batch_stats[path])
    return replace(key_map, entries=tuple(entries))


def _statistics(
    bias: KeyEntry, path: str, specs: Mapping[str, ParamSpec]
) -> Iterator[KeyEntry]:
    """The entries of the statistics of one norm, to follow that of its bias."""
    key = bias.key.removesuffix(".bias")
    for torch, leaf, arrangement in _ARRAYS:
        shape = specs[leaf].unstack().shape
        yield KeyEntry(
            f"{key}.{torch}", path, arrangement, shape, bias.layer, BATCH_STATS, leaf
        )
