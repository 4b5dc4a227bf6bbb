"""The mapping between a PyTorch state dict and the arrays of a model.

A `KeyMap` reads and writes a PyTorch state dict; one error lists all keys and shapes
that do not fit. `make_key_map` makes it from a key table: every parameter
must match exactly one rule, and no PyTorch key may fill two parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from credit_jax.nn.parameters import BATCH_STATS, COLLECTIONS, SPECTRAL_NORM
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_table import (
    SAME,
    Arrangement,
    Rule,
    Shape,
    compare_shapes,
    raise_problems,
)
from credit_jax.state_dict.torch_model import KeyRename, RenamedKey, current_names

# Whole arrays on the host, by our path or by PyTorch's key.
Arrays = dict[str, np.ndarray]
# The collections of `credit_jax.nn.parameters`, whole arrays on the host.
HostModelState = dict[str, dict[str, dict[str, np.ndarray]]]

PARAMS = "params"
# Relative and absolute tolerance of constants that CREDIT computed.
CONSTANT = 1e-5


@dataclass(frozen=True)
class KeyEntry:
    """One PyTorch array and the corresponding array of ours."""

    key: str
    path: str  # of our parameter, or of the layer whose state it is
    arrangement: Arrangement
    shape: Shape  # of our array, without the leading dim of stacked layers
    # Index along that dim; None if nothing is stacked.
    layer: int | None = None
    collection: str = PARAMS  # or one of `nn.parameters`
    leaf: str = ""  # name within `path` there, such as "u"; "" for parameters

    @property
    def name(self) -> str:
        """Name of our array in a report."""
        return f"{self.path} [{self.leaf}]" if self.leaf else self.path


@dataclass(frozen=True)
class KeyMap:
    """The correspondence of all arrays of one model."""

    entries: tuple[KeyEntry, ...]
    renames: tuple[KeyRename, ...] = ()
    frozen: frozenset[str] = frozenset()  # paths of parameters that are not trained
    lists_frozen: bool = True  # whether CREDIT's optimizer includes these
    # PyTorch arrays that the config determines, by key; they precede the others.
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
        """Converts PyTorch's state dict to parameters and model state."""
        self.check(state)
        differ = [
            f"{key}: the PyTorch state dict has other values than the config asks for"
            for key, array in self.constants.items()
            if not np.allclose(np.asarray(state[key]), array, CONSTANT, CONSTANT)
        ]
        raise_problems(differ, "the config is another model's")
        params: Arrays = {}
        model_state: HostModelState = {name: {} for name in COLLECTIONS}
        for entries in self._by_name.values():
            first = entries[0]
            array = np.empty(0)
            for layer, entry in enumerate(entries):
                source = np.asarray(state[entry.key])
                source = entry.arrangement.to_ours(source, entry.shape)
                if first.layer is None:
                    array = source
                else:
                    # Filled in place: a list of all layers would be a second copy.
                    if layer == 0:
                        array = np.empty((len(entries), *source.shape), source.dtype)
                    array[layer] = source
            if first.collection == PARAMS:
                params[first.path] = array
            else:
                collection = model_state[first.collection]
                collection.setdefault(first.path, {})[first.leaf] = array
        return params, model_state

    def check(self, state: Mapping[str, Any]) -> None:
        """Checks keys and shapes without reading values."""
        actual = {key: np.shape(array) for key, array in state.items()}
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
        """Converts parameters and model state to PyTorch's state dict."""
        arrays = {path: np.asarray(array) for path, array in params.items()}
        for collection in model_state.values():
            for path, leaves in collection.items():
                for leaf, array in leaves.items():
                    arrays[f"{path} [{leaf}]"] = np.asarray(array)
        expected = {
            # With the leading dim of stacked layers.
            name: first.shape if first.layer is None else (len(entries), *first.shape)
            for name, entries in self._by_name.items()
            for first in entries[:1]
        }
        raise_problems(
            compare_shapes({k: np.shape(v) for k, v in arrays.items()}, expected),
            "the parameters do not fit the architecture",
        )
        state = {key: array.copy() for key, array in self.constants.items()}
        for entry in self.entries:
            array = arrays[entry.name]
            jax_path = array if entry.layer is None else np.asarray(array[entry.layer])
            state[entry.key] = np.array(entry.arrangement.to_torch(jax_path), order="C")
        return state

    @cached_property
    def _by_name(self) -> dict[str, list[KeyEntry]]:
        """The entries of each of our arrays."""
        arrays: dict[str, list[KeyEntry]] = {}
        for entry in self.entries:
            arrays.setdefault(entry.name, []).append(entry)
        return arrays


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
    """Adds the running statistics of batch norms to a key map."""
    norms = {f"{path}/bias": path for path in batch_stats}
    entries: list[KeyEntry] = []
    for entry in key_map.entries:
        entries.append(entry)
        if (path := norms.get(entry.path)) is None:
            continue
        for torch, leaf, arrangement in _ARRAYS:
            key = f"{entry.key.removesuffix('.bias')}.{torch}"
            shape = batch_stats[path][leaf].unstack().shape
            index = entry.layer, BATCH_STATS, leaf
            entries.append(KeyEntry(key, path, arrangement, shape, *index))
    return replace(key_map, entries=tuple(entries))


def torch_order(
    templates: Iterable[str],
) -> Callable[[str], list[tuple[bool, int, int]]]:
    """Returns a sort key like PyTorch's: modules as in a table, layers by number."""
    ranks: dict[tuple[str, str], int] = {}
    for template in templates:
        for step in _steps(template):
            ranks.setdefault(step, len(ranks))

    # The parameters of a module come before those of its submodules. Under spectral
    # norm PyTorch registers a parameter again, so that `weight_orig` comes after the
    # others, followed by the vectors `weight_u` and `weight_v`.
    def rank(parent: str, name: str, part: str) -> tuple[int, int]:
        if part.isdigit():
            return 0, int(part)
        for late, suffix in enumerate(("_orig", "_u", "_v"), start=1):
            plain = name.removesuffix(suffix)
            if plain != name and (parent, plain) in ranks:
                return late, ranks[parent, plain]
        return 0, ranks[parent, name]

    def order(key: str) -> list[tuple[bool, int, int]]:
        parts = key.split(".")
        pairs = zip(_steps(key), parts, strict=True)
        return [
            (i < len(parts) - 1, *rank(*step, part))
            for i, (step, part) in enumerate(pairs)
        ]

    return order


def _steps(key: str) -> Iterator[tuple[str, str]]:
    """Yields (parent, name) of each part of a key or template, indices as stars."""
    parts = ["*" if re.fullmatch(r"\d+|\{\w+\}", p) else p for p in key.split(".")]
    for i, part in enumerate(parts):
        yield ".".join(parts[:i]), part


def make_key_map(
    table: Iterable[Rule],
    param_specs: Mapping[str, ParamSpec],
    normalized: Collection[str] = (),
) -> KeyMap:
    """Applies a key table to a model, whose `normalized` paths have spectral norm."""
    rules = [*table]
    by_outline: dict[str, list[Rule]] = {}
    for rule in rules:
        by_outline.setdefault(_outline(rule.ours), []).append(rule)
    entries: list[KeyEntry] = []
    order = torch_order(rule.torch for rule in rules)
    problems = []
    for path, param_spec in param_specs.items():
        candidates = by_outline.get(_outline(path), ())
        matches = [(r, at) for r in candidates if (at := r.match(path)) is not None]
        if len(matches) != 1:
            named = ", ".join(rule.ours for rule, _ in matches) or "none"
            problems.append(f"{path}: {len(matches)} rules match ({named}), expected 1")
        elif matches[0][0].is_stacked != param_spec.is_stacked:
            problems.append(
                f"{path}: {matches[0][0].torch} does not match the parameter spec "
                f"whether layers are stacked {param_spec.dims}"
            )
        else:
            entries += _entries(*matches[0], path, param_spec, path in normalized)
    uses = Counter(entry.key for entry in entries)
    problems += [f"{k}: fills {n} arrays, expected 1" for k, n in uses.items() if n > 1]
    raise_problems(problems, "the key table does not fit the architecture")
    entries.sort(key=lambda entry: order(entry.key))
    return KeyMap(tuple(entries))


def _entries(
    rule: Rule,
    at: dict[str, str],
    path: str,
    param_spec: ParamSpec,
    normalized: bool,
) -> Iterator[KeyEntry]:
    """The PyTorch arrays of one parameter of ours."""
    shape = param_spec.unstack().shape
    arrangement = rule.arrangement
    for layer in range(param_spec.shape[0]) if rule.is_stacked else [None]:
        key = rule.torch.format(**at, d=rule.first + (layer or 0))
        if not normalized:
            yield KeyEntry(key, path, arrangement, shape, layer)
            continue
        yield KeyEntry(f"{key}_orig", path, arrangement, shape, layer)
        sizes = dict(zip(arrangement.letters, shape, strict=True))
        for leaf, vector in zip(("u", "v"), arrangement.vectors(), strict=True):
            dims = tuple(sizes[letter] for letter in vector.letters)
            yield KeyEntry(
                f"{key}_{leaf}", path, vector, dims, layer, SPECTRAL_NORM, leaf
            )


def _outline(template: str) -> str:
    """A template or path with indices replaced; equal if both may match."""
    return re.sub(r"(?:\{\w+\}|\d)+", "#", template)
