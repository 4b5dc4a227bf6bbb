"""The registry of sources, by `dataset_type`."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from credit_jax.config.components import Registry
from credit_jax.config.data import DataConfig
from credit_jax.config.sources.registry import SOURCE_CONFIGS
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources import local
from credit_jax.data.sources.anemoi import open_anemoi
from credit_jax.data.sources.source import Source
from credit_jax.data.sources.tisr import open_tisr
from credit_jax.io.open_files import OpenFiles

# (name, data section, cache of open files) -> the opened source
OpenSource: TypeAlias = Callable[[str, DataConfig, OpenFiles | None], Source]


class SourceEntry(NamedTuple):
    """A type of sources that `custom_objects` names.

    Attributes:
        config: class of the source's section.
        open: opens a source of a data section; it reads no field.
    """

    config: type[SourceConfig]
    open: OpenSource


SOURCES: Registry[SourceEntry] = Registry("dataset", SourceEntry)
SOURCES |= {
    name: SourceEntry(SOURCE_CONFIGS[name], open_of_type)
    for name, open_of_type in {
        "local": local.open_local,
        "tisr": open_tisr,
        "arco_era5": local.open_arco,
        "arco_era5_co": local.open_native_arco,
        "weatherbench2_era5": local.open_weatherbench,
        "anemoi": open_anemoi,
    }.items()
}


def open_source(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> Source:
    """Opens a source; no field is read."""
    # A config that came from another process was not parsed in this one.
    entry = SOURCES.find(data.source[name].dataset_type, f"data.source.{name}")
    return entry.open(name, data, open_files)
