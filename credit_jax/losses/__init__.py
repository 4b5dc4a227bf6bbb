"""Losses: elementwise, weighted by latitude and variable, exact means on every mesh."""

from credit_jax.losses.build import build_channel_weights, build_loss
from credit_jax.losses.elementwise import ELEMENTWISE
from credit_jax.losses.latitude import latitude_weights, read_latitude

__all__ = [
    "ELEMENTWISE",
    "build_channel_weights",
    "build_loss",
    "latitude_weights",
    "read_latitude",
]
