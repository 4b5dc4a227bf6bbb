"""The registered models, by CREDIT's `model.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import nnx

from credit_jax.config.base import ConfigError, StrictModel, not_available, parse
from credit_jax.config.custom_objects import open_registry
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
from credit_jax.models.debugger.debugger import Debugger, DebuggerConfig
from credit_jax.models.graph.graph import Graph, GraphConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.models.swin.dscale import Dscale, DscaleConfig
from credit_jax.models.swin.fuxi import Fuxi, FuxiConfig
from credit_jax.models.swin.swin import Swin, SwinConfig
from credit_jax.models.swin.wrf import WRF, WRFConfig
from credit_jax.models.unet.config import DownscalingUNetConfig, UNetConfig
from credit_jax.models.unet.diffusion import DiffusionUNet, DiffusionUNetConfig
from credit_jax.models.unet.unet import UNet


class ModelEntry(NamedTuple):
    """A registered model.

    Attributes:
        config: class of the `model:` section.
        module: NNX class of the model, called with the config.
        key_table: module of `credit_jax.state_dict` with the names of the parameters in
            PyTorch, or the `TorchModel` itself; None for a model that PyTorch lacks.
    """

    config: type[StrictModel]
    module: Callable[[Any], nnx.Module]
    key_table: Any = None


MODELS: dict[str, ModelEntry] = {
    "camulator": ModelEntry(CamulatorConfig, Camulator, "camulator"),
    "crossformer": ModelEntry(CrossFormerConfig, CrossFormer, "crossformer"),
    "crossformer-diffusion": ModelEntry(
        DiffusionCrossFormerConfig, DiffusionCrossFormer, "crossformer_diffusion"
    ),
    "crossformer-ensemble": ModelEntry(
        EnsembleConfig, EnsembleCrossFormer, "crossformer_ensemble"
    ),
    "crossformer-style": ModelEntry(
        EnsembleConfig, EnsembleCrossFormer, "crossformer_ensemble"
    ),
    "crossformer_downscaling": ModelEntry(
        DownscalingCrossFormerConfig, DownscalingCrossFormer, "crossformer"
    ),
    "debugger": ModelEntry(DebuggerConfig, Debugger, "debugger"),
    "dscale": ModelEntry(DscaleConfig, Dscale, "dscale"),
    "fuxi": ModelEntry(FuxiConfig, Fuxi, "fuxi"),
    "graph": ModelEntry(GraphConfig, Graph, "graph"),
    "nextgen_wxformer": ModelEntry(
        NextGenWXFormerConfig, NextGenWXFormer, "nextgen_wxformer"
    ),
    "swin": ModelEntry(SwinConfig, Swin, "swin"),
    "unet": ModelEntry(UNetConfig, UNet, "unet"),
    "unet-diffusion": ModelEntry(DiffusionUNetConfig, DiffusionUNet, "unet_diffusion"),
    "unet_downscaling": ModelEntry(DownscalingUNetConfig, UNet, "unet"),
    "wrf": ModelEntry(WRFConfig, WRF, "wrf"),
    "wxformer": ModelEntry(WXFormerConfig, WXFormer, "wxformer"),
    "wxformer_base": ModelEntry(WXFormerConfig, WXFormer, "wxformer"),
    "wxformer_moe": ModelEntry(WXFormerMoEConfig, WXFormerMoE),
}
open_registry("model", ModelEntry, MODELS, MODELS.__setitem__)


def parse_model(section: Mapping[str, Any]) -> Any:
    """Returns the validated, frozen config of a `model:` section.

    Args:
        section: the section as a mapping.

    Raises:
        ValueError: unknown type or key, or an invalid value; lists all errors.
    """
    name = section.get("type")
    if name not in MODELS:
        raise ConfigError([str(not_available("model.type", name, sorted(MODELS)))])
    return parse(MODELS[name].config, section, "model")


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


def define_model(config: Any) -> ModelDef:
    """Returns the model definition of a config without `problems`."""
    return ModelDef(config, MODELS[config.type].module)
