"""Channel layouts, area weights and global means for losses, metrics and transforms."""

from credit_jax.named_fields.bridgescaler import read_scalers, target_variances
from credit_jax.named_fields.context import ChannelLayout, FieldContext
from credit_jax.named_fields.tree import (
    FieldTree,
    has_named_pair,
    keys_of_tree,
    named_pair,
    widened,
)
from credit_jax.named_fields.weighting import (
    SMALLEST_VARIANCE,
    check_multipliers,
    combination_weights,
    latitude_weights,
    warn_unscored,
)

__all__ = [
    "SMALLEST_VARIANCE",
    "ChannelLayout",
    "FieldContext",
    "FieldTree",
    "check_multipliers",
    "combination_weights",
    "has_named_pair",
    "keys_of_tree",
    "latitude_weights",
    "named_pair",
    "read_scalers",
    "target_variances",
    "warn_unscored",
    "widened",
]
