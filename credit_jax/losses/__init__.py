"""Losses: functions of whole fields, with the same value on every mesh."""

from credit_jax.losses.base import (
    LOSSES,
    CompositeLoss,
    ConfiguredLoss,
    Loss,
    PointwiseLoss,
    initial_parameters,
    value_and_parts,
)
from credit_jax.losses.build import build_channel_weights, build_loss, needs_latitude
from credit_jax.losses.named import error_spread

__all__ = [
    "LOSSES",
    "CompositeLoss",
    "ConfiguredLoss",
    "Loss",
    "PointwiseLoss",
    "build_channel_weights",
    "build_loss",
    "error_spread",
    "initial_parameters",
    "needs_latitude",
    "value_and_parts",
]
