"""The section of a source of the user's own files."""

from typing import ClassVar

from pydantic import model_validator

from credit_jax.config.sources.source import SourceConfig


class LocalConfig(SourceConfig):
    """NetCDF and Zarr files; `levels` selects the nearest levels of a file."""

    ignored: ClassVar = {"mode": "files are read where they are"}

    @property
    def file_templates(self) -> dict[str, str]:
        """See `SourceConfig.file_templates`."""
        return {k: str(f.path) for k, f in self.variables.by_type.items()}

    @model_validator(mode="after")
    def _has_paths(self) -> "LocalConfig":
        without_path = [
            k for k, field in self.variables.by_type.items() if field.path is None
        ]
        if without_path:
            raise ValueError(
                f"variables.{without_path[0]}.path: missing; it names the files"
            )
        if self.variables.has_levels and self.levels and not self.level_coord:
            raise ValueError(
                "vars_3D with levels needs level_coord, the name of the level "
                "coordinate"
            )
        return self
