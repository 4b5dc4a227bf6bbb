"""CREDIT's names of a model, by `model.type`.

`credit_jax.models.registry.MODELS` names the module of this package for each model, so
that a new model is registered once; entries of `custom_objects` have their `TorchModel`
themselves.
"""

from __future__ import annotations

import importlib

from credit_jax.models.registry import MODELS
from credit_jax.state_dict.torch_model import TorchModel


def torch_model(model_type: str) -> TorchModel:
    """CREDIT's names of a registered model.

    Args:
        model_type: `model.type` of the config.

    Raises:
        ValueError: the model is not registered, or has no key table.
    """
    tables = {name: entry.key_table for name, entry in MODELS.items()}
    table = tables.get(model_type)
    if isinstance(table, TorchModel):
        return table
    if table is None:
        known = ", ".join(name for name, table in tables.items() if table)
        raise ValueError(
            f"model.type {model_type!r} has no key table; expected one of {known}"
        )
    return importlib.import_module(f"{__package__}.{table}").TORCH_MODEL
