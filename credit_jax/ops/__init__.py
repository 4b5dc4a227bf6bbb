"""Array functions on one device: the reference definitions, the same on every platform.

`credit_jax.kernels` selects a platform-specific implementation of the same functions;
`credit_jax.parallel` has their counterparts for sharded fields.
"""

from credit_jax.ops.activations import neighbor_gate as neighbor_gate
from credit_jax.ops.activations import squeeze_gate as squeeze_gate
from credit_jax.ops.conv import conv2d as conv2d
from credit_jax.ops.conv import conv3d as conv3d
from credit_jax.ops.conv import conv_transpose as conv_transpose
from credit_jax.ops.norm import RunningStatistics as RunningStatistics
from credit_jax.ops.norm import layer_norm as layer_norm
from credit_jax.ops.resize import area_taps as area_taps
from credit_jax.ops.resize import linear_taps as linear_taps
from credit_jax.ops.resize import nearest_taps as nearest_taps
from credit_jax.ops.space_to_depth import pixel_shuffle as pixel_shuffle
from credit_jax.ops.space_to_depth import unpatch as unpatch
from credit_jax.ops.window_attention import attend as attend
from credit_jax.ops.window_attention import attention_logits as attention_logits
