"""The class of the section of each `dataset_type`."""

from collections.abc import Mapping
from typing import Any

from credit_jax.config.base import not_available
from credit_jax.config.components import REGISTRIES, extensions
from credit_jax.config.custom_objects import offered_names
from credit_jax.config.sources import sections
from credit_jax.config.sources.source import SourceConfig

# dataset_type -> class of its section, for sources of this package.
SOURCE_CONFIGS: dict[str, type[SourceConfig]] = {
    "local": sections.LocalConfig,
    "tisr": sections.TisrConfig,
    "arco_era5": sections.ArcoConfig,
    "arco_era5_co": sections.NativeArcoConfig,
    "weatherbench2_era5": sections.WeatherBenchConfig,
    "anemoi": sections.AnemoiConfig,
}


def source_types() -> tuple[str, ...]:
    """Returns every `dataset_type`, those that are not imported yet included."""
    return tuple(
        dict.fromkeys(
            [*SOURCE_CONFIGS, *extensions("dataset"), *offered_names("dataset")]
        )
    )


def source_config(kind: object) -> type[SourceConfig] | None:
    """Returns the class of the sections of a `dataset_type`; None if it is unknown."""
    name = str(kind)
    if name in SOURCE_CONFIGS:
        return SOURCE_CONFIGS[name]
    if point := extensions("dataset").get(name):
        return point.load().config
    registry = REGISTRIES.get("dataset", {})
    return registry[name].config if name in registry else None


def parse_source(value: Any) -> Any:
    """Validates a source section by the class of its `dataset_type`."""
    if not isinstance(value, Mapping):
        return value
    kind = value.get("dataset_type")
    if kind is None:
        return value
    section = source_config(kind)
    if section is not None:
        return section.model_validate(value)
    advice = "custom_objects of the config can name an entry of your own"
    if kind == "base":
        advice = "CREDIT's base reads nothing: its fields are constants for tests"
    raise ValueError(f"{not_available('dataset type', kind, source_types())}; {advice}")
