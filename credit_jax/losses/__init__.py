"""Losses: functions of whole fields with the same value on every mesh."""

from credit_jax.losses.base import Loss, LossEntry, Pointwise, pointwise
from credit_jax.losses.build import build_channel_weights, build_loss
from credit_jax.losses.registry import LOSSES

__all__ = [
    "LOSSES",
    "Loss",
    "LossEntry",
    "Pointwise",
    "build_channel_weights",
    "build_loss",
    "pointwise",
]
