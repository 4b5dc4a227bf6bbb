"""What functions of whole fields share: channel layout, area weights, global means."""

from credit_jax.fields.channels import ChannelLayout
from credit_jax.fields.context import FieldContext
from credit_jax.fields.latitude import latitude_weights

__all__ = ["ChannelLayout", "FieldContext", "latitude_weights"]
