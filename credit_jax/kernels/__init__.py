"""Operations of `credit_jax.ops` with platform-specific implementations."""

from credit_jax.kernels.dispatch import Implementation as Implementation
from credit_jax.kernels.dispatch import conv2d as conv2d
from credit_jax.kernels.dispatch import dense as dense
from credit_jax.kernels.dispatch import fuses as fuses
from credit_jax.kernels.dispatch import implementation as implementation
from credit_jax.kernels.dispatch import is_amd as is_amd
from credit_jax.kernels.dispatch import kernel_notes as kernel_notes
from credit_jax.kernels.dispatch import layer_norm as layer_norm
from credit_jax.kernels.dispatch import layer_norm_and_skip as layer_norm_and_skip
from credit_jax.kernels.dispatch import platform as platform
from credit_jax.kernels.dispatch import use_implementation as use_implementation
from credit_jax.kernels.dispatch import use_platform as use_platform
from credit_jax.kernels.dispatch import window_attention as window_attention
