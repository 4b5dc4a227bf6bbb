"""The models by CREDIT's `model.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from credit_jax.config.base import ConfigError, StrictModel, not_available, parse
from credit_jax.models.crossformer.crossformer import CrossFormer
from credit_jax.models.crossformer.crossformer_config import CrossFormerConfig
from credit_jax.models.crossformer.wxformer import WXFormer
from credit_jax.models.crossformer.wxformer_config import WXFormerConfig
from credit_jax.models.model_def import ModelDef

MODELS: dict[str, tuple[type[StrictModel], Callable[[Any], nnx.Module]]] = {
    "crossformer": (CrossFormerConfig, CrossFormer),
    "wxformer": (WXFormerConfig, WXFormer),
    "wxformer_base": (WXFormerConfig, WXFormer),
}


def parse_model(block: Mapping[str, Any]) -> Any:
    """The validated config of a `model:` block.

    Args:
        block: the mapping as it stands in the YAML.

    Returns:
        Frozen config class of that model.

    Raises:
        ValueError: unknown type or key, or a value that does not fit; all at once.
    """
    name = block.get("type")
    if name not in MODELS:
        raise ConfigError([str(not_available("model.type", name, sorted(MODELS)))])
    return parse(MODELS[name][0], block, "model")


def build(block: Mapping[str, Any]) -> ModelDef:
    """The architecture of a `model:` block.

    Raises:
        ValueError: all that does not parse, or the sizes that do not fit together.
    """
    config = parse_model(block)
    problems = config.problems()
    if problems:
        raise ConfigError(problems, "model")
    return ModelDef(config, MODELS[config.type][1])
