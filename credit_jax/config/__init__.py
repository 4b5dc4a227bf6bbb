"""CREDIT's gen2 YAML config as validated, documented classes."""

from credit_jax.config.base import ConfigError, StrictModel, not_available, parse
from credit_jax.config.config import Config
from credit_jax.config.load import (
    apply_overrides,
    build_config,
    dump_config,
    load_config,
    write_config,
)

__all__ = [
    "Config",
    "ConfigError",
    "StrictModel",
    "apply_overrides",
    "build_config",
    "dump_config",
    "load_config",
    "not_available",
    "parse",
    "write_config",
]
