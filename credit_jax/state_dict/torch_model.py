"""CREDIT's names for the parts of a model: one for each architecture."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from credit_jax.state_dict.key_table import KeyTable


@dataclass(frozen=True)
class Rename:
    """Keys of an older version of CREDIT and their current names.

    Attributes:
        pattern: matches a whole key, parallel wrappers removed.
        replacement: the current key, with the groups of the pattern.
    """

    pattern: re.Pattern[str]
    replacement: str


@dataclass(frozen=True)
class RemovedLayer:
    """Keys of a layer that CREDIT no longer has, so that they cannot be converted.

    Attributes:
        pattern: matches a whole key, parallel wrappers removed.
        reason: for the error.
    """

    pattern: re.Pattern[str]
    reason: str


@dataclass(frozen=True)
class TorchModel:
    """CREDIT's names of a model. `config` is its validated `model:` section.

    Attributes:
        key_table: of the parameters, in the order in which CREDIT's constructor creates
            its layers. One table holds all variants of a model.
        block_names: config -> the modules whose outputs are those that
            `capture_intermediates` receives, in the same order.
        idle_modules: config -> modules that no output depends on, whose parameters
            therefore never get a gradient.
        renames: of keys of older versions of CREDIT.
        removed: layers of older versions.
    """

    key_table: KeyTable
    block_names: Callable[[Any], list[str]]
    idle_modules: Callable[[Any], list[str]] = lambda _: []
    renames: tuple[Rename, ...] = ()
    removed: tuple[RemovedLayer, ...] = ()
