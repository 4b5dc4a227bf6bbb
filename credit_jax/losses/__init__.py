"""Losses: functions of whole fields, with the same value on every mesh."""

from credit_jax.losses.base import LOSSES as LOSSES
from credit_jax.losses.base import CompositeLoss as CompositeLoss
from credit_jax.losses.base import ConfiguredLoss as ConfiguredLoss
from credit_jax.losses.base import Loss as Loss
from credit_jax.losses.base import PointwiseLoss as PointwiseLoss
from credit_jax.losses.base import initial_parameters as initial_parameters
from credit_jax.losses.base import value_and_parts as value_and_parts
from credit_jax.losses.build import build_channel_weights as build_channel_weights
from credit_jax.losses.build import build_loss as build_loss
from credit_jax.losses.build import needs_latitude as needs_latitude
from credit_jax.losses.named import error_spread as error_spread
