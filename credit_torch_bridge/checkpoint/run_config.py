"""The parts of a config that the conversion of a checkpoint needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from credit_jax.config import Config, ConfigError, apply_overrides, build_config, parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.data import num_samples
from credit_jax.config.finetune import finetune_of
from credit_jax.config.trainer import TrainerConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.conversion import key_map_for
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.plan.finetune import frozen_parameters
from credit_jax.state_dict.key_map import KeyMap
from credit_torch_bridge.config.editor import ConfigEditor

CONFIG_FILE = "model.yml"


@dataclass(frozen=True)
class RunConfig:
    """The config of a run, whose sections are validated when they are first read."""

    raw: Mapping[str, Any]  # the mapping of the YAML
    source: str = "config"  # file that it was read from, for error messages

    @cached_property
    def model_def(self) -> ModelDef:
        """The model of the `model:` section, frozen as `trainer.finetune` says."""
        section = self.raw.get("model")
        if not isinstance(section, Mapping):
            raise ConfigError(["model: missing; this section is required"], self.source)
        model_def = build(section)
        frozen = frozen_parameters(model_def, finetune_of(self.raw))
        return replace(model_def, frozen=frozen)

    @cached_property
    def key_map(self) -> KeyMap:
        """The mapping between CREDIT's arrays and those of credit_jax."""
        return key_map_for(self.model_def)

    @cached_property
    def trainer(self) -> TrainerConfig:
        """The `trainer:` section."""
        section = self.raw.get("trainer")
        if not isinstance(section, Mapping):
            raise ConfigError(
                ["trainer: missing; optimizer and schedule need it"], self.source
            )
        if "parallelism" not in section:
            raise ConfigError(
                [
                    "trainer.parallelism: missing; the config is of CREDIT's "
                    "generation 1. Convert it first (credit-jax config), or give "
                    "--weights-only"
                ],
                self.source,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parse(TrainerConfig, section, "trainer")

    @cached_property
    def full_config(self) -> Config | None:
        """The validated config; None if credit_jax cannot train with it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return build_config(self.raw, source=self.source)
        except ValueError:
            return None

    @property
    def learns(self) -> bool:
        """Whether parameters of the loss are trained, which CREDIT never saves."""
        loss = self.raw.get("loss") or {}
        args = loss.get("args") or {}
        learnable = args.get("var_weighting") == "learnable"
        return loss.get("type") == "base" and learnable

    @property
    def seed(self) -> int:
        seed = self.raw.get("seed", 42)
        return seed if isinstance(seed, int) else 42

    def batches_per_epoch(self, requested: int | None = None) -> int | None:
        """Micro-batches per epoch in credit_jax; None if not implied."""
        config = self.full_config
        if requested is not None or config is None:
            return requested or self.trainer.batches_per_epoch or None
        parallel = self.trainer.parallelism
        split = parallel.tensor * parallel.domain
        dp = (self.trainer.num_devices or 0) // split
        cap = self.trainer.batches_per_epoch
        if parallel.data == "none" or config.shares_batches:
            dp = 1
        if dp < 1:
            return cap or None
        samples = -(-num_samples(config.data) // dp)
        batches = samples // self.trainer.train_batch_size
        return min(cap, batches) if cap else batches

    def with_settings(self, settings: Mapping[str, Any]) -> RunConfig:
        """A copy with some values replaced, by dotted key."""
        editor = ConfigEditor(dict(self.raw))
        for dotted, value in settings.items():
            editor.put(dotted, value)
        return RunConfig(editor.config, self.source)


def read_run_config(
    config: str | Path | Mapping[str, Any], overrides: tuple[str, ...] = ()
) -> RunConfig:
    """Reads a config from a file or a mapping."""
    if isinstance(config, Mapping):
        raw, source = apply_overrides(config, overrides), "config"
    else:
        raw, source = apply_overrides(read_yaml(config), overrides), str(config)
    register_objects(raw, source=source)
    return RunConfig(raw, source)
