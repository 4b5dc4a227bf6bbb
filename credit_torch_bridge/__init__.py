"""CREDIT's PyTorch checkpoints to credit_jax and back, nothing lost."""

from credit_torch_bridge.state_dict import from_state_dict as from_state_dict
from credit_torch_bridge.state_dict import to_state_dict as to_state_dict
