"""The registry of sources, by `dataset_type`."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from credit_jax.config.custom_objects import open_registry
from credit_jax.config.data import DataConfig
from credit_jax.config.sources.registry import SOURCE_CONFIGS, source_config
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources.anemoi import open_anemoi
from credit_jax.data.sources.local import open_arco, open_local, open_weatherbench
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


# dataset_type of `config.sources.registry.SOURCE_CONFIGS` -> function that opens the
# source. Those of sub-packages come when a config names them.
SOURCES: dict[str, OpenSource] = {
    "local": open_local,
    "tisr": open_tisr,
    "arco_era5": open_arco,
    "weatherbench2_era5": open_weatherbench,
    "anemoi": open_anemoi,
}


def _add(name: str, entry: SourceEntry) -> None:
    SOURCE_CONFIGS[name] = entry.config
    SOURCES[name] = entry.open


open_registry("dataset", SourceEntry, SOURCES, _add)


def open_source(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> Source:
    """Opens a source; no field is read.

    Args:
        name: name of the source.
        data: the data section that it is in.
        open_files: cache of open files, shared with other sources.

    Raises:
        FileNotFoundError: the files of the source are missing.
        ValueError: the files do not match the config.
    """
    kind = data.source[name].dataset_type
    # A config that came from another process was not parsed in this one.
    source_config(kind)
    return SOURCES[kind](name, data, open_files)
