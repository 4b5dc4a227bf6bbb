"""The registered models, by CREDIT's `model.type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.config import ConfigError, not_available, parse
from credit_jax.models import debugger, function
from credit_jax.models.common.config import MODELS, ModelConfig, ModelEntry
from credit_jax.models.crossformer import crossformer, nextgen
from credit_jax.models.graph import graph
from credit_jax.models.model_def import ModelDef
from credit_jax.models.swin import fuxi, swin
from credit_jax.models.unet import diffusion as unet_diffusion
from credit_jax.models.unet import unet
from credit_jax.state_dict.torch_model import TorchModel

__all__ = ["MODELS", "ModelEntry", "build", "parse_model", "torch_model"]

# The modules whose models register themselves as they are imported.
FAMILIES = (crossformer, nextgen, debugger, function, fuxi, graph, swin, unet)
FAMILIES = (*FAMILIES, unet_diffusion)


def parse_model(section: Mapping[str, Any]) -> ModelConfig:
    """The validated config of a `model:` section; a ConfigError lists all errors."""
    name = section.get("type")
    if name not in MODELS:
        raise ConfigError([str(not_available("model.type", name, sorted(MODELS)))])
    return parse(MODELS[str(name)].config, section, "model")


def build(section: Mapping[str, Any]) -> ModelDef:
    """The model definition of a `model:` section; a ConfigError lists all errors."""
    config = parse_model(section)
    if problems := [*config.problems()]:
        raise ConfigError(problems, "model")
    return ModelDef(config, MODELS[config.type].module)


def torch_model(model_type: str) -> TorchModel:
    """CREDIT's names of the parameters of a registered model."""
    tables = {name: MODELS[name].key_table for name in sorted(MODELS)}
    table = tables.get(model_type)
    if table is None:
        available = ", ".join(name for name, table in tables.items() if table)
        raise ValueError(
            f"model.type {model_type!r} has no key table; expected one of {available}"
        )
    return table
