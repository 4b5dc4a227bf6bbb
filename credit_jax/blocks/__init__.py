"""CREDIT's preblocks and postblocks: from samples to x and y, and back to fields."""

from credit_jax.blocks.base import Block
from credit_jax.blocks.normalise import Normaliser
from credit_jax.blocks.registry import (
    POSTBLOCKS,
    PREBLOCKS,
    apply_blocks,
    build_postblocks,
    build_preblocks,
    check_blocks,
    find_normaliser,
)
from credit_jax.blocks.units import Units, channel_units

__all__ = [
    "POSTBLOCKS",
    "PREBLOCKS",
    "Block",
    "Normaliser",
    "Units",
    "apply_blocks",
    "build_postblocks",
    "build_preblocks",
    "channel_units",
    "check_blocks",
    "find_normaliser",
]
