"""The registry of sources, by `dataset_type`."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from credit_jax.config.custom_objects import open_registry
from credit_jax.config.data import DataConfig
from credit_jax.config.sources.registry import SOURCE_CONFIGS
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources.era5 import open_arco, open_weatherbench
from credit_jax.data.sources.gefs import open_gefs
from credit_jax.data.sources.gfs import open_gfs
from credit_jax.data.sources.goes import open_goes
from credit_jax.data.sources.hrrr import open_hrrr
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.mrms import open_mrms
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


# dataset_type of `credit_jax.config.sources.SOURCE_CONFIGS` -> function that opens the
# source.
SOURCES: dict[str, OpenSource] = {
    "local": open_local,
    "tisr": open_tisr,
    "arco_era5": open_arco,
    "weatherbench2_era5": open_weatherbench,
    "mrms": open_mrms,
    "goes": open_goes,
    "gfs": open_gfs,
    "gefs": open_gefs,
    "hrrr": open_hrrr,
    "hrrr_nat": open_hrrr,
    "hrrr_subh": open_hrrr,
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
    return SOURCES[data.source[name].dataset_type](name, data, open_files)
