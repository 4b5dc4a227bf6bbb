"""Operations of `credit_jax.ops`, each with the implementation that suits the mesh."""

from credit_jax.kernels.dispatch import Implementation as Implementation
from credit_jax.kernels.dispatch import attend as attend
from credit_jax.kernels.dispatch import attention_logits as attention_logits
from credit_jax.kernels.dispatch import conv2d as conv2d
from credit_jax.kernels.dispatch import conv3d as conv3d
from credit_jax.kernels.dispatch import conv_transpose2d as conv_transpose2d
from credit_jax.kernels.dispatch import conv_transpose3d as conv_transpose3d
from credit_jax.kernels.dispatch import dense as dense
from credit_jax.kernels.dispatch import feed_forward as feed_forward
from credit_jax.kernels.dispatch import fuses_layers as fuses_layers
from credit_jax.kernels.dispatch import implementation as implementation
from credit_jax.kernels.dispatch import layer_norm as layer_norm
from credit_jax.kernels.dispatch import layer_norm_and_skip as layer_norm_and_skip
from credit_jax.kernels.dispatch import platform as platform
from credit_jax.kernels.dispatch import project as project
from credit_jax.kernels.dispatch import use_implementation as use_implementation
from credit_jax.kernels.dispatch import use_platform as use_platform
from credit_jax.kernels.dispatch import window_attention as window_attention
