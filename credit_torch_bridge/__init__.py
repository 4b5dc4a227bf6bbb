"""CREDIT's PyTorch checkpoints to credit_jax and back, nothing lost."""

from credit_torch_bridge.compare import Comparison as Comparison
from credit_torch_bridge.compare import compare as compare
from credit_torch_bridge.config_convert import convert_config as convert_config
from credit_torch_bridge.config_ledger import ConfigReport as ConfigReport
from credit_torch_bridge.reading import from_torch as from_torch
from credit_torch_bridge.snapshot import Moments as Moments
from credit_torch_bridge.snapshot import Snapshot as Snapshot
from credit_torch_bridge.state_dict import from_state_dict as from_state_dict
from credit_torch_bridge.state_dict import to_state_dict as to_state_dict
from credit_torch_bridge.torch_checkpoint import open_checkpoint as open_checkpoint
from credit_torch_bridge.writing import to_torch as to_torch
