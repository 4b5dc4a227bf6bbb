"""Sources by their `dataset_type`, one line each."""

from collections.abc import Callable

from credit_jax.config.sources import SourceConfig
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.source import Source
from credit_jax.io.open_files import OpenFiles

# dataset_type, of `credit_jax.config.sources.SOURCE_CONFIGS` -> what opens the source.
SOURCES: dict[str, Callable[[str, SourceConfig, OpenFiles | None], Source]] = {
    "local": open_local,
}


def open_source(
    name: str, config: SourceConfig, open_files: OpenFiles | None = None
) -> Source:
    """Open a source; no field is read.

    Args:
        name: of the source.
        config: its section.
        open_files: files that are open already, shared with other sources.

    Raises:
        FileNotFoundError: if its files are missing.
        ValueError: if they are not what the config says.
    """
    return SOURCES[config.dataset_type](name, config, open_files)
