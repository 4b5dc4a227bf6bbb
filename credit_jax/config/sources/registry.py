"""The class of the section of each `dataset_type`."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError, ValidationError

from credit_jax.config.base import OTHER_KEY, not_available
from credit_jax.config.sources.buckets import GefsConfig, GfsConfig, HrrrConfig
from credit_jax.config.sources.downloads import GoesConfig, MrmsConfig
from credit_jax.config.sources.era5 import ArcoConfig, WeatherBenchConfig
from credit_jax.config.sources.local import LocalConfig
from credit_jax.config.sources.source import SourceConfig
from credit_jax.config.sources.tisr import TisrConfig

# dataset_type -> class of its section.
SOURCE_CONFIGS: dict[str, type[SourceConfig]] = {
    "local": LocalConfig,
    "tisr": TisrConfig,
    "arco_era5": ArcoConfig,
    "weatherbench2_era5": WeatherBenchConfig,
    "mrms": MrmsConfig,
    "goes": GoesConfig,
    "gfs": GfsConfig,
    "gefs": GefsConfig,
    "hrrr": HrrrConfig,
    "hrrr_nat": HrrrConfig,
    "hrrr_subh": HrrrConfig,
}


def parse_source(value: Any) -> Any:
    """Validates a source section by the class of its `dataset_type`.

    Raises:
        ValidationError: the type is unknown, or the section has problems.
    """
    if not isinstance(value, Mapping):
        return value
    kind = value.get("dataset_type")
    if isinstance(kind, str) and kind in SOURCE_CONFIGS:
        return SOURCE_CONFIGS[kind].model_validate(value)
    if kind is None:
        return value
    text = str(not_available("dataset type", kind, SOURCE_CONFIGS))
    text += {
        "base": "; CREDIT's base reads nothing: its fields are constants for tests",
    }.get(
        str(kind),
        "; custom_objects of the config can name an entry of your own",
    )
    error = PydanticCustomError(OTHER_KEY, "{text}", {"text": text})
    raise ValidationError.from_exception_data(
        "SourceConfig",
        [{"type": error, "loc": ("dataset_type",), "input": kind}],
    )
