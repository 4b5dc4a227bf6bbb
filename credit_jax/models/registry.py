"""The registered models, by CREDIT's `model.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import nnx

from credit_jax.config import ConfigError, not_available, parse
from credit_jax.config.components import Registry
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.crossformer import keys as crossformer_keys
from credit_jax.models.crossformer.camulator import Camulator, CamulatorConfig
from credit_jax.models.crossformer.crossformer import CrossFormer, CrossFormerConfig
from credit_jax.models.crossformer.diffusion import (
    DiffusionCrossFormer,
    DiffusionCrossFormerConfig,
)
from credit_jax.models.crossformer.downscaling import (
    DownscalingCrossFormer,
    DownscalingCrossFormerConfig,
)
from credit_jax.models.crossformer.ensemble import EnsembleConfig, EnsembleCrossFormer
from credit_jax.models.crossformer.nextgen import (
    NextGenWXFormer,
    NextGenWXFormerConfig,
)
from credit_jax.models.crossformer.wxformer import WXFormer, WXFormerConfig
from credit_jax.models.crossformer.wxformer_moe import WXFormerMoE, WXFormerMoEConfig
from credit_jax.models.debugger import keys as debugger_keys
from credit_jax.models.debugger.debugger import Debugger, DebuggerConfig
from credit_jax.models.graph import keys as graph_keys
from credit_jax.models.graph.graph import Graph, GraphConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.models.swin import keys as swin_keys
from credit_jax.models.swin.dscale import Dscale, DscaleConfig
from credit_jax.models.swin.fuxi import Fuxi, FuxiConfig
from credit_jax.models.swin.swin import Swin, SwinConfig
from credit_jax.models.swin.wrf import WRF, WRFConfig
from credit_jax.models.unet import keys as unet_keys
from credit_jax.models.unet.config import DownscalingUNetConfig, UNetConfig
from credit_jax.models.unet.diffusion import DiffusionUNet, DiffusionUNetConfig
from credit_jax.models.unet.unet import UNet
from credit_jax.state_dict.torch_model import TorchModel


class ModelEntry(NamedTuple):
    """A registered model.

    Attributes:
        config: class of the `model:` section.
        module: NNX class of the model, called with the config.
        key_table: names of the parameters in PyTorch; None for a model that PyTorch
            lacks.
    """

    config: type[ModelConfig]
    module: Callable[[Any], nnx.Module]
    key_table: TorchModel | None = None


MODELS: Registry[ModelEntry] = Registry("model", ModelEntry)
MODELS |= {
    "camulator": ModelEntry(CamulatorConfig, Camulator, crossformer_keys.CAMULATOR),
    "crossformer": ModelEntry(
        CrossFormerConfig, CrossFormer, crossformer_keys.CROSSFORMER
    ),
    "crossformer-diffusion": ModelEntry(
        DiffusionCrossFormerConfig, DiffusionCrossFormer, crossformer_keys.DIFFUSION
    ),
    "crossformer-ensemble": ModelEntry(
        EnsembleConfig, EnsembleCrossFormer, crossformer_keys.ENSEMBLE
    ),
    "crossformer-style": ModelEntry(
        EnsembleConfig, EnsembleCrossFormer, crossformer_keys.ENSEMBLE
    ),
    "crossformer_downscaling": ModelEntry(
        DownscalingCrossFormerConfig,
        DownscalingCrossFormer,
        crossformer_keys.CROSSFORMER,
    ),
    "debugger": ModelEntry(DebuggerConfig, Debugger, debugger_keys.TORCH_MODEL),
    "dscale": ModelEntry(DscaleConfig, Dscale, swin_keys.DSCALE),
    "fuxi": ModelEntry(FuxiConfig, Fuxi, swin_keys.FUXI),
    "graph": ModelEntry(GraphConfig, Graph, graph_keys.TORCH_MODEL),
    "nextgen_wxformer": ModelEntry(
        NextGenWXFormerConfig, NextGenWXFormer, crossformer_keys.NEXTGEN
    ),
    "swin": ModelEntry(SwinConfig, Swin, swin_keys.SWIN),
    "unet": ModelEntry(UNetConfig, UNet, unet_keys.UNET),
    "unet-diffusion": ModelEntry(
        DiffusionUNetConfig, DiffusionUNet, unet_keys.DIFFUSION
    ),
    "unet_downscaling": ModelEntry(DownscalingUNetConfig, UNet, unet_keys.UNET),
    "wrf": ModelEntry(WRFConfig, WRF, swin_keys.WRF),
    "wxformer": ModelEntry(WXFormerConfig, WXFormer, crossformer_keys.WXFORMER),
    "wxformer_base": ModelEntry(WXFormerConfig, WXFormer, crossformer_keys.WXFORMER),
    "wxformer_moe": ModelEntry(WXFormerMoEConfig, WXFormerMoE),
}


def parse_model(section: Mapping[str, Any]) -> ModelConfig:
    """Returns the validated, frozen config of a `model:` section.

    Args:
        section: the section as a mapping.

    Raises:
        ValueError: unknown type or key, or an invalid value; lists all errors.
    """
    name = section.get("type")
    if name not in MODELS:
        raise ConfigError([str(not_available("model.type", name, sorted(MODELS)))])
    return parse(MODELS[str(name)].config, section, "model")


def build(section: Mapping[str, Any]) -> ModelDef:
    """Returns the model definition of a `model:` section.

    Raises:
        ValueError: the section is invalid, or sizes are inconsistent; lists all errors.
    """
    config = parse_model(section)
    problems = config.problems()
    if problems:
        raise ConfigError(problems, "model")
    return define_model(config)


def define_model(config: ModelConfig) -> ModelDef:
    """Returns the model definition of a config without `problems`."""
    return ModelDef(config, MODELS[config.type].module)


def torch_model(model_type: str) -> TorchModel:
    """CREDIT's names of the parameters of a registered model.

    Args:
        model_type: `model.type` of the config.

    Raises:
        ValueError: the model is not registered, or has no key table.
    """
    tables = {name: entry.key_table for name, entry in MODELS.items()}
    table = tables.get(model_type)
    if table is None:
        known = ", ".join(name for name, table in tables.items() if table)
        raise ValueError(
            f"model.type {model_type!r} has no key table; expected one of {known}"
        )
    return table
