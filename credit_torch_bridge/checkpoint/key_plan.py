"""A key table applied to the parameter specs of a model.

`make_key_plan` checks that every parameter matches exactly one rule of the table and
that no PyTorch key fills two parameters. The resulting `KeyPlan` reads and writes a
PyTorch state dict; all keys and shapes that do not fit are in one error.

The order of a table is the order in which CREDIT's modules create their layers: PyTorch
numbers the parameters of an optimizer's state in that order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from credit_jax.nn.model_state import BATCH_STATS, COLLECTIONS, SPECTRAL_NORM
from credit_jax.parallel.params.spec import ParamSpec
from credit_torch_bridge.checkpoint.key_order import TorchOrder
from credit_torch_bridge.checkpoint.renames import RenamedKey, current_names
from credit_torch_bridge.models.arrangement import Arrangement
from credit_torch_bridge.models.key_table import Ignore, KeyTable, Rule
from credit_torch_bridge.models.torch_model import Rename
from credit_torch_bridge.problems import Shape, compare_shapes, raise_problems

State = dict[str, np.ndarray]
# The collections of `credit_jax.nn.model_state`, whole arrays on the host.
HostModelState = dict[str, dict[str, dict[str, np.ndarray]]]
# Makes an array to be filled: (shape, dtype) -> array.
Allocate = Callable[..., np.ndarray]

# What an array is to its parameter: the parameter, or a vector of spectral norm.
PARAMETER, U, V = "parameter", "u", "v"


@dataclass(frozen=True)
class KeyEntry:
    """One PyTorch array and its place here.

    Attributes:
        key: of PyTorch's state dict.
        role: PARAMETER, U or V.
        path: of our parameter.
        layer: index along our leading dim; None if the parameter is not stacked.
        arrangement: of this array.
        shape: of our array, without the leading dim of stacked layers.
    """

    key: str
    role: str
    path: str
    layer: int | None
    arrangement: Arrangement
    shape: Shape

    @property
    def name(self) -> str:
        """Our array's name in a report."""
        return self.path if self.role == PARAMETER else f"{self.path} [{self.role}]"


@dataclass(frozen=True)
class KeyPlan:
    """The correspondence of all arrays of one model.

    Attributes:
        entries: one per PyTorch array, in the order of PyTorch's state dict.
        ignored: PyTorch keys that may be present and are not used.
        renames: of keys of older versions of CREDIT.
    """

    entries: tuple[KeyEntry, ...]
    ignored: tuple[Ignore, ...] = ()
    renames: tuple[Rename, ...] = ()

    @property
    def keys(self) -> list[str]:
        """PyTorch's keys, in its order."""
        return [entry.key for entry in self.entries]

    @property
    def parameters(self) -> KeyPlan:
        """The entries of parameters alone, for moments and averages."""
        entries = tuple(entry for entry in self.entries if entry.role == PARAMETER)
        return replace(self, entries=entries)

    def current_names(self, given: Iterable[str]) -> list[RenamedKey]:
        """The names in the key table of the keys of a file; see `renames`."""
        return current_names(given, self.keys, self.renames)

    def read(
        self, state: Mapping[str, Any], allocate: Allocate = np.empty
    ) -> tuple[State, HostModelState]:
        """Our parameters and model state from PyTorch's state dict.

        Args:
            state: PyTorch's arrays by key, or what numpy reads as arrays.
            allocate: makes the arrays that are filled.

        Returns:
            path -> array, and the collections of `credit_jax.nn.model_state`.

        Raises:
            ValueError: keys or shapes do not fit; lists every one of them.
        """
        self.check(state)
        params: State = {}
        model_state: HostModelState = {name: {} for name in COLLECTIONS}
        for (path, role), entries in self._arrays.items():
            array = _filled(entries, state, allocate)
            if role == PARAMETER:
                params[path] = array
            else:
                collection = model_state[_collection(role)]
                collection.setdefault(path, {})[role] = array
        return params, model_state

    def check(self, state: Mapping[str, Any]) -> None:
        """Checks keys and shapes without reading values.

        Raises:
            ValueError: as `read`.
        """
        given = {k: np.shape(v) for k, v in state.items() if not self._is_ignored(k)}
        wanted = {p.key: p.arrangement.torch_shape(p.shape) for p in self.entries}
        raise_problems(
            compare_shapes(given, wanted),
            "the PyTorch state dict does not fit the architecture",
        )

    def write(
        self,
        params: Mapping[str, np.ndarray],
        model_state: HostModelState,
        allocate: Allocate = np.empty,
    ) -> State:
        """PyTorch's state dict from ours: the inverse of `read`, bit for bit.

        Raises:
            ValueError: paths or shapes do not fit; lists every one of them.
        """
        arrays = _named(params, model_state)
        wanted = {entries[0].name: _whole(entries) for entries in self._arrays.values()}
        raise_problems(
            compare_shapes({k: np.shape(v) for k, v in arrays.items()}, wanted),
            "the parameters do not fit the architecture",
        )
        state = {}
        for entry in self.entries:
            array = arrays[entry.name]
            ours = array if entry.layer is None else array[entry.layer]
            source = entry.arrangement.to_torch(ours)
            target = allocate(source.shape, source.dtype)
            target[...] = source
            state[entry.key] = target
        return state

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], list[KeyEntry]]:
        """The entries of each of our arrays."""
        arrays: dict[tuple[str, str], list[KeyEntry]] = {}
        for entry in self.entries:
            arrays.setdefault((entry.path, entry.role), []).append(entry)
        return arrays

    def _is_ignored(self, key: str) -> bool:
        return any(ignore.match(key) for ignore in self.ignored)


def make_key_plan(
    table: KeyTable,
    param_specs: Mapping[str, ParamSpec],
    normalized: Collection[str] = (),
) -> KeyPlan:
    """Applies a key table to a model.

    Args:
        table: of the model.
        param_specs: of every parameter, by path.
        normalized: paths of the matrices under spectral norm; PyTorch then has
            `weight_orig`, `weight_u` and `weight_v` in place of `weight`.

    Raises:
        ValueError: a parameter matches no rule or several, or one PyTorch key would
            fill two parameters; lists every case.
    """
    rules = [row for row in table if isinstance(row, Rule)]
    alike: dict[str, list[Rule]] = {}
    for rule in rules:
        alike.setdefault(_outline(rule.ours), []).append(rule)
    entries: list[KeyEntry] = []
    order = TorchOrder(rule.torch for rule in rules)
    problems = []
    for path, param_spec in param_specs.items():
        candidates = alike.get(_outline(path), ())
        found = [(r, at) for r in candidates if (at := r.match(path)) is not None]
        if len(found) != 1:
            named = ", ".join(rule.ours for rule, _ in found) or "none"
            problems.append(f"{path}: {len(found)} rules match ({named}), expected 1")
        elif found[0][0].is_stacked != param_spec.is_stacked:
            problems.append(
                f"{path}: {found[0][0].torch} does not match the parameter spec "
                f"whether layers are stacked {param_spec.dims}"
            )
        else:
            entries += _entries(*found[0], path, param_spec, path in normalized)
    uses = Counter(entry.key for entry in entries)
    problems += [f"{k}: fills {n} arrays, expected 1" for k, n in uses.items() if n > 1]
    raise_problems(problems, "the key table does not fit the architecture")
    ignored = tuple(row for row in table if isinstance(row, Ignore))
    entries.sort(key=lambda entry: order.place(entry.key))
    return KeyPlan(tuple(entries), ignored)


def _entries(
    rule: Rule,
    at: dict[str, str],
    path: str,
    param_spec: ParamSpec,
    normalized: bool,
) -> Iterator[KeyEntry]:
    """The PyTorch arrays of one of our parameters."""
    shape = param_spec.unstack().shape
    arrangement = rule.arrangement
    for layer in range(param_spec.shape[0]) if rule.is_stacked else [None]:
        key = rule.torch.format(**at, d=layer)
        if not normalized:
            yield KeyEntry(key, PARAMETER, path, layer, arrangement, shape)
            continue
        yield KeyEntry(f"{key}_orig", PARAMETER, path, layer, arrangement, shape)
        sizes = dict(zip(arrangement.letters, shape, strict=True))
        for role, vector in zip((U, V), arrangement.vectors(), strict=True):
            dims = tuple(sizes[letter] for letter in vector.letters)
            yield KeyEntry(f"{key}_{role}", role, path, layer, vector, dims)


def _filled(
    entries: list[KeyEntry], state: Mapping[str, Any], allocate: Allocate
) -> np.ndarray:
    """Our array of these entries."""
    array: np.ndarray | None = None
    for layer, entry in enumerate(entries):
        source = entry.arrangement.to_ours(np.asarray(state[entry.key]), entry.shape)
        if array is None:
            array = allocate(_whole(entries), source.dtype)
        array[... if entry.layer is None else layer] = source
    assert array is not None, "an array has entries"
    return array


def _named(
    params: Mapping[str, np.ndarray],
    model_state: HostModelState,
) -> State:
    """All arrays of ours by `KeyEntry.name`."""
    named = {path: np.asarray(array) for path, array in params.items()}
    for collection in model_state.values():
        for path, arrays in collection.items():
            named |= {f"{path} [{role}]": np.asarray(a) for role, a in arrays.items()}
    return named


def _collection(role: str) -> str:
    """The collection of `credit_jax.nn.model_state` that has arrays of this role."""
    return SPECTRAL_NORM if role in (U, V) else BATCH_STATS


def _whole(entries: list[KeyEntry]) -> Shape:
    """Shape of our array that these entries fill."""
    shape = entries[0].shape
    return shape if entries[0].layer is None else (len(entries), *shape)


def _outline(template: str) -> str:
    """A template or path with its indices replaced, equal for those that match."""
    return re.sub(r"(?:\{\w+\}|\d)+", "#", template)
