"""CREDIT's names for the parts of a model: one for each architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from credit_jax.state_dict.key_table import KeyTable


@dataclass(frozen=True)
class KeyRename:
    """Keys of an older version of CREDIT and their current names.

    Attributes:
        pattern: matches a whole key, parallel wrappers removed.
        replacement: the current key, with the groups of the pattern.
    """

    pattern: re.Pattern[str]
    replacement: str


@dataclass(frozen=True)
class RemovedLayer:
    """Keys of a layer that current CREDIT lacks, so that they cannot be converted.

    Attributes:
        pattern: matches a whole key, parallel wrappers removed.
        reason: reason that the error gives.
    """

    pattern: re.Pattern[str]
    reason: str


@dataclass(frozen=True)
class Upgrade:
    """Converts state dicts of an older version whose arrays differ, too.

    Attributes:
        is_older: (key, array) -> whether only the older version has this entry.
        entries: (key, array) -> the entries of the current version.
        note: a message to users about the upgrade.
    """

    is_older: Callable[[str, Any], bool]
    entries: Callable[[str, Any], Mapping[str, Any]]
    note: str

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
    """CREDIT's names of a model. `config` is its validated `model:` section.

    Attributes:
        key_table: key table of the parameters, in the order in which CREDIT's
            constructor creates its layers. One table holds all variants of a model.
        block_names: config -> the modules whose outputs are those that
            `capture_intermediates` receives, in the same order.
        idle_modules: config -> modules that no output depends on, whose parameters
            therefore never get a gradient.
        renames: keys of older versions of CREDIT and their current names.
        removed: layers of older versions that cannot be converted.
        upgrade: converts state dicts of an older version; None if renames suffice.
        lists_frozen: whether CREDIT's optimizer includes the parameters that are not
            trained; it omits those without `requires_grad`.
        constants: config -> arrays of the state dict that the config determines.
        signature: matches part of a key of this model and of no other model, to
            recognize weights that are given with another `model.type`.
        extra_keys: keys of the `model:` section that CREDIT's class does not accept.
    """

    key_table: KeyTable
    block_names: Callable[[Any], list[str]]
    idle_modules: Callable[[Any], list[str]] = lambda _: []
    renames: tuple[KeyRename, ...] = ()
    removed: tuple[RemovedLayer, ...] = ()
    upgrade: Upgrade | None = None
    lists_frozen: bool = True
    constants: Callable[[Any], Mapping[str, np.ndarray]] = lambda _: {}
    signature: re.Pattern[str] | None = None
    extra_keys: tuple[str, ...] = ()
