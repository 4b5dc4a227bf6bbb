"""CREDIT's names of the parameters of `debugger` (models/debugger_model.py)."""

from __future__ import annotations

from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.torch_model import TorchModel

TORCH_MODEL = TorchModel(
    key_table=(Rule("linear.weight", "linear/kernel", LINEAR),),
    block_names=lambda _: [],
)
