"""One section of `data.source`: a class for each `dataset_type`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError, ValidationError

from credit_jax.config.base import OTHER_KEY, not_available
from credit_jax.config.dates import Calendar, Dates, Timestep
from credit_jax.config.fields import VariablesConfig

# The engine of xarray that is replaced by thread-safe ones.
NETCDF4 = "netcdf4"

Extent = tuple[float, float, float, float]


class SourceConfig(Dates):
    """What the sections of all sources have.

    Attributes:
        dataset_type: how it is read.
        variables: what is read.
        levels: values of the level coordinate to take; null takes all levels.
        level_coord: name of the level coordinate.
        time_coord: name of the time coordinate.
        engine: xarray's engine; null lets the file's content decide, and so does
            "netcdf4", whose C library is not thread-safe.
        calendar: of its times; null takes that of the files.
        temporal_mode: "exact" reads at the very time; "persist" at the last time of
            this source before it; "cyclic" at that of one year, `cycle_year`.
        cycle_year: the year that a cyclic source has; null takes that of the file.
        grid_type: "unstructured" has one dim instead of rows and columns.
        start_datetime, end_datetime, date_ranges, timestep: of this source, where they
            differ from the data section.
        history_len, forecast_len: as in the data section, if they are repeated.
    """

    dataset_type: str
    variables: VariablesConfig
    levels: tuple[float, ...] | None = None
    level_coord: str | None = None
    time_coord: str = "time"
    engine: str | None = None
    calendar: Calendar | None = None
    temporal_mode: Literal["exact", "persist", "cyclic"] = "exact"
    cycle_year: int | None = None
    grid_type: Literal["rectilinear", "curvilinear", "unstructured"] | None = None
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1)
    forecast_len: int | None = Field(default=None, ge=0)

    def without_effect(self) -> dict[str, str]:
        """See `StrictModel.without_effect`."""
        if self.engine != NETCDF4:
            return {}
        return {"engine": "h5netcdf reads the same files, and is thread-safe"}

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """The levels that are read, as far as they are known without a file."""
        return self.levels

    @property
    def file_templates(self) -> dict[str, str]:
        """Field type -> template of files that must be there before a run."""
        return {}

    @model_validator(mode="after")
    def _one_cycle(self) -> "SourceConfig":
        if self.temporal_mode == "cyclic" and self.date_ranges is not None:
            raise ValueError(
                "temporal_mode: cyclic cannot be combined with date_ranges; "
                "start_datetime and end_datetime are those of its one year"
            )
        return self


class LocalConfig(SourceConfig):
    """NetCDF and Zarr files; levels are the nearest ones of the file."""

    ignored: ClassVar = {"mode": "files are read where they are"}

    @property
    def file_templates(self) -> dict[str, str]:
        """See `SourceConfig.file_templates`."""
        return {k: str(f.path) for k, f in self.variables.given.items()}

    @model_validator(mode="after")
    def _has_paths(self) -> "LocalConfig":
        lost = [k for k, field in self.variables.given.items() if field.path is None]
        if lost:
            raise ValueError(f"variables.{lost[0]}.path: missing; it names the files")
        if self.variables.has_levels and self.levels and not self.level_coord:
            raise ValueError(
                "vars_3D with levels needs level_coord, the name of the level "
                "coordinate"
            )
        return self


# dataset_type -> the class of its section.
SOURCE_CONFIGS: dict[str, type[SourceConfig]] = {
    "local": LocalConfig,
}


def parse_source(value: Any) -> Any:
    """The section of a source, of the class that its `dataset_type` names."""
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
        "; classes that CREDIT registers by custom_objects are torch datasets",
    )
    error = PydanticCustomError(OTHER_KEY, "{text}", {"text": text})
    raise ValidationError.from_exception_data(
        "SourceConfig",
        [{"type": error, "loc": ("dataset_type",), "input": kind}],
    )
