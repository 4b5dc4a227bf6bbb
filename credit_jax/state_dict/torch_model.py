"""CREDIT's names for the parts of a model: one for each architecture.

Parallel wrappers, torch.compile and older versions of CREDIT write the same parameter
under other names; `current_names` maps them to the names in the key table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from credit_jax.state_dict.key_table import Rule


@dataclass(frozen=True)
class KeyRename:
    """Keys of an older version of CREDIT and their current names."""

    pattern: re.Pattern[str]  # matches a whole key, parallel wrappers removed
    replacement: str  # the current key, with the groups of the pattern


@dataclass(frozen=True)
class RemovedLayer:
    """Keys of a layer that current CREDIT lacks, so that they cannot be converted."""

    pattern: re.Pattern[str]  # matches a whole key, parallel wrappers removed
    reason: str  # for the error


@dataclass(frozen=True)
class Upgrade:
    """Converts state dicts of an older version whose arrays differ, too."""

    is_older: Callable[[str, Any], bool]  # whether only the older one has (key, array)
    entries: Callable[[str, Any], Mapping[str, Any]]  # (key, array) -> current entries
    note: str  # a message to users about the upgrade

    def applied(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the current state dict; None if this one has no older entry."""
        if not any(self.is_older(key, array) for key, array in state.items()):
            return None
        now: dict[str, Any] = {}
        for key, array in state.items():
            older = self.is_older(key, array)
            now |= self.entries(key, array) if older else {key: array}
        return now


@dataclass(frozen=True)
class TorchModel:
    """CREDIT's names of a model, functions of its validated `model:` section."""

    # In the order in which CREDIT's constructor creates its layers, of all variants.
    key_table: tuple[Rule, ...]
    # The modules whose outputs are those that `capture_intermediates` receives, in the
    # same order.
    block_names: Callable[[Any], list[str]]
    # Modules that no output depends on, whose parameters never get a gradient.
    idle_modules: Callable[[Any], list[str]] = lambda _: []
    renames: tuple[KeyRename, ...] = ()
    removed: tuple[RemovedLayer, ...] = ()
    upgrade: Upgrade | None = None
    # Whether CREDIT's optimizer includes the parameters that are not trained; it omits
    # those without `requires_grad`.
    lists_frozen: bool = True
    # Arrays of the state dict that the config determines.
    constants: Callable[[Any], Mapping[str, np.ndarray]] = lambda _: {}
    # Matches part of a key of this model and of no other model, to recognize weights
    # that are given with another `model.type`.
    signature: re.Pattern[str] | None = None
    # Keys of the `model:` section that CREDIT's class does not accept.
    extra_keys: tuple[str, ...] = ()


# Prefixes and infixes of modules that wrap another one.
_PREFIX = re.compile(r"^(?:module\.|_orig_mod\.|_fsdp_wrapped_module\.)+")
_INNER = re.compile(
    r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    r"|^_checkpoint_wrapped_module\."
)
# A domain-parallel layer has the layer that it replaces as its attribute `conv`.
_DOMAIN = KeyRename(re.compile(r"(.*)\.conv\.([^.]+)"), r"\1.\2")
_IS_DOMAIN = re.compile(r"\.conv(?:s\.\d+)?\.conv\.")

WRAPPER, DOMAIN, OLD_LAYOUT = "wrapper removed", "domain layer", "older layout"


@dataclass(frozen=True)
class RenamedKey:
    """A key of a file and its name in the key table."""

    file_key: str  # of the file
    name: str  # in the table
    steps: tuple[str, ...] = ()  # what was changed, in order


def current_names(
    keys: Iterable[str], available: Collection[str], renames: Iterable[KeyRename] = ()
) -> list[RenamedKey]:
    """Maps the keys of a file to available names in the key table."""
    available, renames = set(available), tuple(renames)
    # Wrappers are removed first. If the result is not in the table, it is tried without
    # the `.conv` of domain-parallel layers and under the renames of the model. A key
    # that remains unknown is kept, and is reported when the table is applied.
    renamed = [_renamed(key, available, renames) for key in keys]
    first: dict[str, str] = {}
    for key in renamed:
        if key.name in first:
            raise ValueError(
                f"{first[key.name]!r} and {key.file_key!r} are both {key.name!r}; "
                "the file holds two models"
            )
        first[key.name] = key.file_key
    return renamed


def _renamed(
    key: str, available: set[str], renames: tuple[KeyRename, ...]
) -> RenamedKey:
    plain = _INNER.sub("", _PREFIX.sub("", key))
    unwrapped = (WRAPPER,) if plain != key else ()
    # Possible current names of the key, and the changes that lead to them.
    starts: list[tuple[str, tuple[str, ...]]] = [(plain, ())]
    names = [*starts]
    if match := _DOMAIN.pattern.fullmatch(plain):
        starts.insert(0, (match.expand(_DOMAIN.replacement), (DOMAIN,)))
        names.append(starts[0])
    names += [
        (match.expand(rename.replacement), (*steps, OLD_LAYOUT))
        for start, steps in starts
        for rename in renames
        if (match := rename.pattern.fullmatch(start))
    ]
    for name, steps in names:
        if name in available:
            return RenamedKey(key, name, unwrapped + steps)
    return RenamedKey(key, plain, unwrapped)


def is_domain_parallel(keys: Iterable[str]) -> bool:
    """Whether a state dict comes from a domain-parallel run."""
    return any(_IS_DOMAIN.search(key) for key in keys)
