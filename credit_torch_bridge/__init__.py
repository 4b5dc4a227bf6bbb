"""CREDIT's PyTorch checkpoints to credit_jax and back, nothing lost."""

from credit_torch_bridge.checkpoint.jax_checkpoint import JaxCheckpoint as JaxCheckpoint
from credit_torch_bridge.checkpoint.jax_checkpoint import Moments as Moments
from credit_torch_bridge.checkpoint.jax_to_torch import to_torch as to_torch
from credit_torch_bridge.checkpoint.state_dict import from_state_dict as from_state_dict
from credit_torch_bridge.checkpoint.state_dict import to_state_dict as to_state_dict
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    open_checkpoint as open_checkpoint,
)
from credit_torch_bridge.checkpoint.torch_to_jax import from_torch as from_torch
from credit_torch_bridge.compare.compare import Comparison as Comparison
from credit_torch_bridge.compare.compare import compare as compare
from credit_torch_bridge.config.convert import convert_config as convert_config
from credit_torch_bridge.config.editor import ConfigReport as ConfigReport
