"""Key tables: which PyTorch key is which of our parameters, checked without gaps.

A model's table is a tuple of `Rule`s. `make_plan` lays it over the parameter specs of a
model: every parameter is filled by exactly one rule, from exactly the PyTorch
keys that the rule names. The resulting `Plan` reads a PyTorch state dict and writes
one; what does not fit is reported all at once.

The order of a table is that in which CREDIT's modules make their layers: PyTorch
numbers the parameters in an optimizer's state in that order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from credit_jax.parallel.params.spec import ParamSpec
from credit_torch_bridge.checkpoint.arrangement import SAME, Arrangement
from credit_torch_bridge.checkpoint.order import TorchOrder
from credit_torch_bridge.checkpoint.report import Shape, compare_shapes, raise_problems

State = dict[str, np.ndarray]
SpectralNormState = dict[str, dict[str, np.ndarray]]
# Makes an array to be filled: (shape, dtype) -> array.
Allocate = Callable[..., np.ndarray]

# The index of a block within its stage: a part of PyTorch's key, our leading dim.
STACKED = "{d}"
# What an array is to its parameter: the parameter, or a vector of spectral norm.
PARAMETER, U, V = "parameter", "u", "v"


@dataclass(frozen=True)
class Rule:
    """One kind of parameter under both names.

    Attributes:
        torch: PyTorch's key with named indices, "layers.{s}.0.convs.{i}.1.weight";
            `{d}` is the index that our leading dim counts.
        ours: our path with the same indices less `{d}`,
            "stages/{s}/embed/convs/{i}/kernel".
        arrangement: of one PyTorch array.
    """

    torch: str
    ours: str
    arrangement: Arrangement = SAME

    @property
    def is_stacked(self) -> bool:
        """Whether our array stacks the PyTorch arrays of several blocks."""
        return STACKED in self.torch

    def match(self, path: str) -> dict[str, str] | None:
        """The indices with which `ours` gives `path`, or None."""
        found = _regex(self.ours).fullmatch(path)
        return found and found.groupdict()


@dataclass(frozen=True)
class Ignore:
    """PyTorch keys that have no parameter of ours, and why nothing is lost.

    Attributes:
        torch: the key with named indices.
        reason: may not be empty.
    """

    torch: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError(f"ignoring {self.torch!r} needs a reason")


@dataclass(frozen=True)
class Piece:
    """One PyTorch array and its place here.

    Attributes:
        key: of PyTorch's state dict.
        role: PARAMETER, U or V.
        path: of our parameter.
        block: index along our leading dim; None where nothing is stacked.
        arrangement: of this array.
        shape: of our array, without the leading dim of stacked blocks.
    """

    key: str
    role: str
    path: str
    block: int | None
    arrangement: Arrangement
    shape: Shape

    @property
    def name(self) -> str:
        """Our array's name in a report."""
        return self.path if self.role == PARAMETER else f"{self.path} [{self.role}]"


@dataclass(frozen=True)
class Plan:
    """A key table laid over one architecture.

    Attributes:
        pieces: every PyTorch array and its place, in the order of PyTorch's state dict.
        ignored: PyTorch keys that may be there and are not used.
    """

    pieces: tuple[Piece, ...]
    ignored: tuple[Ignore, ...] = ()

    @property
    def keys(self) -> list[str]:
        """PyTorch's keys, in its order."""
        return [piece.key for piece in self.pieces]

    @property
    def parameters(self) -> Plan:
        """The plan of what has a value for every parameter: moments, averages."""
        pieces = tuple(piece for piece in self.pieces if piece.role == PARAMETER)
        return replace(self, pieces=pieces)

    def read(
        self, state: Mapping[str, Any], allocate: Allocate = np.empty
    ) -> tuple[State, SpectralNormState]:
        """Our parameters and spectral-norm vectors from PyTorch's state dict.

        Args:
            state: PyTorch's arrays by key, or what numpy reads as arrays.
            allocate: makes the arrays that are filled.

        Returns:
            path -> array, and path -> {"u", "v"} of every matrix under spectral norm.

        Raises:
            ValueError: keys or shapes do not fit; lists every one of them.
        """
        self.check(state)
        params: State = {}
        spectral_norm_state: SpectralNormState = {}
        for (path, role), pieces in self._arrays.items():
            array = _filled(pieces, state, allocate)
            if role == PARAMETER:
                params[path] = array
            else:
                spectral_norm_state.setdefault(path, {})[role] = array
        return params, spectral_norm_state

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises the error that `read` would, looking at shapes alone."""
        given = {k: np.shape(v) for k, v in state.items() if not self._is_ignored(k)}
        wanted = {p.key: p.arrangement.torch_shape(p.shape) for p in self.pieces}
        raise_problems(
            compare_shapes(given, wanted),
            "the PyTorch state dict does not fit the architecture",
        )

    def write(
        self,
        params: Mapping[str, np.ndarray],
        spectral_norm_state: Mapping[str, Mapping[str, np.ndarray]],
        allocate: Allocate = np.empty,
    ) -> State:
        """PyTorch's state dict from ours: the inverse of `read`, bit for bit.

        Raises:
            ValueError: paths or shapes do not fit; lists every one of them.
        """
        arrays = _named(params, spectral_norm_state)
        wanted = {pieces[0].name: _whole(pieces) for pieces in self._arrays.values()}
        raise_problems(
            compare_shapes({k: np.shape(v) for k, v in arrays.items()}, wanted),
            "the parameters do not fit the architecture",
        )
        state = {}
        for piece in self.pieces:
            array = arrays[piece.name]
            block = array if piece.block is None else array[piece.block]
            source = piece.arrangement.to_torch(block)
            target = allocate(source.shape, source.dtype)
            target[...] = source
            state[piece.key] = target
        return state

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], list[Piece]]:
        """The pieces of each of our arrays."""
        arrays: dict[tuple[str, str], list[Piece]] = {}
        for piece in self.pieces:
            arrays.setdefault((piece.path, piece.role), []).append(piece)
        return arrays

    def _is_ignored(self, key: str) -> bool:
        return any(_regex(entry.torch).fullmatch(key) for entry in self.ignored)


def make_plan(
    table: Iterable[Rule | Ignore],
    param_specs: Mapping[str, ParamSpec],
    normalized: Collection[str] = (),
) -> Plan:
    """Lays a key table over an architecture.

    Args:
        table: the rules of the model.
        parameter specs: of every parameter of the architecture, by path.
        normalized: paths of the matrices under spectral norm; PyTorch then has
            `weight_orig`, `weight_u` and `weight_v` in place of `weight`.

    Raises:
        ValueError: a parameter matches no rule or several, or one PyTorch key would
            fill two parameters; lists every case.
    """
    entries = tuple(table)
    rules = [entry for entry in entries if isinstance(entry, Rule)]
    alike: dict[str, list[Rule]] = {}
    for rule in rules:
        alike.setdefault(_outline(rule.ours), []).append(rule)
    pieces: list[Piece] = []
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
                f"whether blocks are stacked {param_spec.dims}"
            )
        else:
            pieces += _pieces(*found[0], path, param_spec, path in normalized)
    uses = Counter(piece.key for piece in pieces)
    problems += [f"{k}: fills {n} arrays, expected 1" for k, n in uses.items() if n > 1]
    raise_problems(problems, "the key table does not fit the architecture")
    ignored = tuple(entry for entry in entries if isinstance(entry, Ignore))
    pieces.sort(key=lambda piece: order.place(piece.key))
    return Plan(tuple(pieces), ignored)


def _pieces(
    rule: Rule,
    at: dict[str, str],
    path: str,
    param_spec: ParamSpec,
    normalized: bool,
) -> Iterator[Piece]:
    """The PyTorch arrays of one of our parameters."""
    shape = param_spec.unstack().shape
    arrangement = rule.arrangement
    for block in range(param_spec.shape[0]) if rule.is_stacked else [None]:
        key = rule.torch.format(**at, d=block)
        if not normalized:
            yield Piece(key, PARAMETER, path, block, arrangement, shape)
            continue
        yield Piece(f"{key}_orig", PARAMETER, path, block, arrangement, shape)
        sizes = dict(zip(arrangement.letters, shape, strict=True))
        for role, vector in zip((U, V), arrangement.vectors(), strict=True):
            dims = tuple(sizes[letter] for letter in vector.letters)
            yield Piece(f"{key}_{role}", role, path, block, vector, dims)


def _filled(
    pieces: list[Piece], state: Mapping[str, Any], allocate: Allocate
) -> np.ndarray:
    """Our array of these pieces."""
    array: np.ndarray | None = None
    for block, piece in enumerate(pieces):
        source = piece.arrangement.to_ours(np.asarray(state[piece.key]), piece.shape)
        if array is None:
            array = allocate(_whole(pieces), source.dtype)
        array[... if piece.block is None else block] = source
    assert array is not None, "an array has pieces"
    return array


def _named(
    params: Mapping[str, np.ndarray],
    spectral_norm_state: Mapping[str, Mapping[str, np.ndarray]],
) -> State:
    """All arrays of ours by `Piece.name`."""
    named = {path: np.asarray(array) for path, array in params.items()}
    for path, pair in spectral_norm_state.items():
        named |= {f"{path} [{role}]": np.asarray(a) for role, a in pair.items()}
    return named


def _whole(pieces: list[Piece]) -> Shape:
    """Shape of our array that these pieces fill."""
    shape = pieces[0].shape
    return shape if pieces[0].block is None else (len(pieces), *shape)


def _outline(template: str) -> str:
    """A template or path without its numbers, the same for those that match."""
    return re.sub(r"(?:\{\w+\}|\d)+", "#", template)


@cache
def _regex(template: str) -> re.Pattern[str]:
    """The template with a named group of digits in place of each index."""
    parts = re.split(r"\{(\w+)\}", template)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [rf"(?P<{name}>\d+)" for name in parts[1::2]]
    return re.compile("".join(parts))
