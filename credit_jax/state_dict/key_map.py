"""The mapping between a PyTorch state dict and the arrays of a model.

A `KeyMap` reads and writes a PyTorch state dict; one error lists all keys and shapes
that do not fit. `match_keys.make_key_map` makes it from a key table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from credit_jax.nn.model_state import BATCH_STATS, COLLECTIONS
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.arrangement import SAME, Arrangement
from credit_jax.state_dict.key_table import Ignore
from credit_jax.state_dict.problems import Shape, compare_shapes, raise_problems
from credit_jax.state_dict.renames import RenamedKey, current_names
from credit_jax.state_dict.torch_model import KeyRename

# Whole arrays on the host, by our path or by PyTorch's key.
Arrays = dict[str, np.ndarray]
# The collections of `credit_jax.nn.model_state`, whole arrays on the host.
HostModelState = dict[str, dict[str, dict[str, np.ndarray]]]

PARAMS = "params"
# Relative and absolute tolerance of constants that CREDIT computed.
CONSTANT = 1e-5


@dataclass(frozen=True)
class KeyEntry:
    """One PyTorch array and the corresponding array of ours.

    Attributes:
        key: key of PyTorch's state dict.
        path: path of our parameter, or of the layer whose state it is.
        arrangement: arrangement of the array.
        shape: shape of our array, without the leading dim of stacked layers.
        layer: index along that leading dim; None if nothing is stacked.
        collection: PARAMS, or the collection of `credit_jax.nn.model_state`.
        leaf: name within `path` in that collection, such as "u"; "" for parameters.
    """

    key: str
    path: str
    arrangement: Arrangement
    shape: Shape
    layer: int | None = None
    collection: str = PARAMS
    leaf: str = ""

    @property
    def name(self) -> str:
        """Name of our array in a report."""
        return f"{self.path} [{self.leaf}]" if self.leaf else self.path


@dataclass(frozen=True)
class KeyMap:
    """The correspondence of all arrays of one model.

    Attributes:
        entries: one per PyTorch array, in the order of PyTorch's state dict.
        ignored: PyTorch keys that may be present and are not used.
        renames: keys of older versions of CREDIT and their current names.
        frozen: paths of parameters that are not trained.
        lists_frozen: whether CREDIT's optimizer includes these, too.
        constants: PyTorch arrays that the config determines, by key; they precede the
            others.
    """

    entries: tuple[KeyEntry, ...]
    ignored: tuple[Ignore, ...] = ()
    renames: tuple[KeyRename, ...] = ()
    frozen: frozenset[str] = frozenset()
    lists_frozen: bool = True
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """PyTorch's keys, in its order."""
        return [*self.constants, *(entry.key for entry in self.entries)]

    @property
    def parameters(self) -> KeyMap:
        """The key map of the parameters only, for moving averages."""
        entries = tuple(entry for entry in self.entries if entry.collection == PARAMS)
        return replace(self, entries=entries, constants={})

    @property
    def averaged_statistics(self) -> KeyMap:
        """The key map of averaged batch-norm statistics, in which counts are floats."""
        entries = tuple(
            replace(entry, arrangement=Arrangement(entry.arrangement.pattern))
            for entry in self.entries
            if entry.collection == BATCH_STATS
        )
        return replace(self, entries=entries, constants={})

    @property
    def trainable(self) -> KeyMap:
        """The key map of the parameters that are not frozen, for moments."""
        entries = self.parameters.entries
        trained = tuple(entry for entry in entries if entry.path not in self.frozen)
        return replace(self, entries=trained)

    @property
    def optimized(self) -> KeyMap:
        """The key map of the parameters in CREDIT's optimizer."""
        return self.parameters if self.lists_frozen else self.trainable

    def current_names(self, keys: Iterable[str]) -> list[RenamedKey]:
        """Maps the keys of a file to names in the key table; see `renames`."""
        return current_names(keys, self.keys, self.renames)

    def read(self, state: Mapping[str, Any]) -> tuple[Arrays, HostModelState]:
        """Converts PyTorch's state dict to parameters and model state.

        Args:
            state: arrays, or objects that numpy converts to arrays, by PyTorch's key.

        Returns:
            path -> array, and the collections of `credit_jax.nn.model_state`.

        Raises:
            ValueError: keys or shapes do not fit; lists all of them.
        """
        self.check(state)
        raise_problems(self._other_constants(state), "the config is another model's")
        params: Arrays = {}
        model_state: HostModelState = {name: {} for name in COLLECTIONS}
        for entries in self._by_name.values():
            first, array = entries[0], _filled(entries, state)
            if first.collection == PARAMS:
                params[first.path] = array
            else:
                collection = model_state[first.collection]
                collection.setdefault(first.path, {})[first.leaf] = array
        return params, model_state

    def check(self, state: Mapping[str, Any]) -> None:
        """Checks keys and shapes without reading values.

        Raises:
            ValueError: as `read`.
        """
        actual = {k: np.shape(v) for k, v in state.items() if not self._is_ignored(k)}
        expected = {key: np.shape(array) for key, array in self.constants.items()}
        expected |= {p.key: p.arrangement.torch_shape(p.shape) for p in self.entries}
        raise_problems(
            compare_shapes(actual, expected),
            "the PyTorch state dict does not fit the architecture",
        )

    def write(
        self,
        params: Mapping[str, np.ndarray],
        model_state: HostModelState,
    ) -> Arrays:
        """Converts parameters and model state to PyTorch's state dict: inverts `read`.

        Raises:
            ValueError: paths or shapes do not fit; lists all of them.
        """
        arrays = _named(params, model_state)
        expected = {name: _whole(entries) for name, entries in self._by_name.items()}
        raise_problems(
            compare_shapes({k: np.shape(v) for k, v in arrays.items()}, expected),
            "the parameters do not fit the architecture",
        )
        state = {key: array.copy() for key, array in self.constants.items()}
        for entry in self.entries:
            array = arrays[entry.name]
            ours = array if entry.layer is None else np.asarray(array[entry.layer])
            state[entry.key] = np.array(entry.arrangement.to_torch(ours), order="C")
        return state

    @cached_property
    def _by_name(self) -> dict[str, list[KeyEntry]]:
        """The entries of each of our arrays."""
        arrays: dict[str, list[KeyEntry]] = {}
        for entry in self.entries:
            arrays.setdefault(entry.name, []).append(entry)
        return arrays

    def _other_constants(self, state: Mapping[str, Any]) -> list[str]:
        """Constants that differ from those of the state dict, one line each."""
        return [
            f"{key}: the PyTorch state dict has other values than the config asks for"
            for key, array in self.constants.items()
            if not np.allclose(np.asarray(state[key]), array, CONSTANT, CONSTANT)
        ]

    def _is_ignored(self, key: str) -> bool:
        return any(ignore.match(key) for ignore in self.ignored)


def _filled(entries: list[KeyEntry], state: Mapping[str, Any]) -> np.ndarray:
    """Our array, filled from its entries."""
    array: np.ndarray | None = None
    for layer, entry in enumerate(entries):
        source = entry.arrangement.to_ours(np.asarray(state[entry.key]), entry.shape)
        if array is None:
            array = np.empty(_whole(entries), source.dtype)
        array[... if entry.layer is None else layer] = source
    assert array is not None, "an array has entries"
    return array


def _named(
    params: Mapping[str, np.ndarray],
    model_state: HostModelState,
) -> Arrays:
    """Our arrays by `KeyEntry.name`."""
    named = {path: np.asarray(array) for path, array in params.items()}
    for collection in model_state.values():
        for path, arrays in collection.items():
            named |= {f"{path} [{leaf}]": np.asarray(a) for leaf, a in arrays.items()}
    return named


def _whole(entries: list[KeyEntry]) -> Shape:
    """Shape of our array, with the leading dim of stacked layers."""
    shape = entries[0].shape
    return shape if entries[0].layer is None else (len(entries), *shape)


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
