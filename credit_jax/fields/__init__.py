"""What functions of whole fields share: channel layout, area weights, global means."""

from credit_jax.fields.area_weights import latitude_weights
from credit_jax.fields.channels import ChannelLayout
from credit_jax.fields.context import FieldContext

__all__ = ["ChannelLayout", "FieldContext", "latitude_weights"]
