"""Channel layouts, area weights and global means for losses, metrics and transforms."""

from credit_jax.named_fields.bridgescaler import read_scalers, target_variances
from credit_jax.named_fields.context import ChannelLayout, FieldContext
from credit_jax.named_fields.tree import FieldTree, keys_of_tree, widened
from credit_jax.named_fields.weighting import (
    SMALLEST_VARIANCE,
    ScoredVariables,
    latitude_weights,
    row_weights,
)

__all__ = [
    "SMALLEST_VARIANCE",
    "ChannelLayout",
    "FieldContext",
    "FieldTree",
    "ScoredVariables",
    "keys_of_tree",
    "latitude_weights",
    "read_scalers",
    "row_weights",
    "target_variances",
    "widened",
]
