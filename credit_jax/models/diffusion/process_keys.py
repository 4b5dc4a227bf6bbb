"""CREDIT's names of a diffusion process around a network (diffusion.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from credit_jax.models.diffusion.config import DiffusionKeys
from credit_jax.state_dict.key_table import Rule


def below_process(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules of a network with keys under "model.", as part of a process."""
    return tuple(replace(rule, torch=f"model.{rule.torch}") for rule in rules)


def process_buffers(config: DiffusionKeys) -> Mapping[str, np.ndarray]:
    """The buffers of the process, which precede the keys of the network."""
    return config.process.tables
