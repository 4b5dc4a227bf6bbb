"""CREDIT's preblocks and postblocks: from samples to x and y, and back to fields."""

from credit_jax.transforms.base import Block
from credit_jax.transforms.pre.normalize import Normalizer
from credit_jax.transforms.registry import (
    POSTBLOCKS,
    PREBLOCKS,
    apply_transforms,
    build_postblocks,
    build_preblocks,
    check_transforms,
    find_normalizer,
)
from credit_jax.transforms.units import Units, channel_units

__all__ = [
    "POSTBLOCKS",
    "PREBLOCKS",
    "Block",
    "Normalizer",
    "Units",
    "apply_transforms",
    "build_postblocks",
    "build_preblocks",
    "channel_units",
    "check_transforms",
    "find_normalizer",
]
