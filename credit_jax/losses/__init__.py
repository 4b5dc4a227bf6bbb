"""Losses: functions of whole fields, with the same value on every mesh."""

from credit_jax.losses.base import (
    CompositeLoss,
    Loss,
    LossEntry,
    Pointwise,
    initial_parameters,
    pointwise,
    value_and_parts,
)
from credit_jax.losses.build import build_channel_weights, build_loss
from credit_jax.losses.crps import error_spread
from credit_jax.losses.registry import LOSSES

__all__ = [
    "LOSSES",
    "CompositeLoss",
    "Loss",
    "LossEntry",
    "Pointwise",
    "build_channel_weights",
    "build_loss",
    "error_spread",
    "initial_parameters",
    "pointwise",
    "value_and_parts",
]
