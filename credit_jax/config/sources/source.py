"""The keys that the sections of all sources have."""

from typing import Any, Literal

import pandas as pd
from pydantic import Field, model_validator

from credit_jax.config.dates import Calendar, Dates, Timestep, duration
from credit_jax.config.fields import VariablesConfig

# xarray's default engine, which is replaced by thread-safe ones.
NETCDF4 = "netcdf4"

# The default of `SourceConfig.input`.
MAIN_INPUT = "x"


class SourceConfig(Dates):
    """Keys that the sections of all sources have.

    Attributes:
        dataset_type: type of the source, a key of `SOURCE_CONFIGS`.
        variables: variables to read.
        levels: values of the level coordinate to read; null reads all levels.
        level_coord: name of the level coordinate.
        time_coord: name of the time coordinate.
        engine: xarray's engine; null or "netcdf4", whose C library is not thread-safe,
            chooses it by the file's content.
        calendar: calendar of the times; null uses that of the files.
        temporal_mode: the time to read for the time t of a sample: "exact" reads t;
            "persist" the last time of this source at or before t; "cyclic" the time of
            the same date in `cycle_year`; "next" the first multiple of its `timestep`
            after the target.
        input: the input of the model that its variables are part of, for models with
            several; CREDIT has no such key.
        cycle_year: the year of a cyclic source; null uses that of the file.
        grid_type: "unstructured" has one dim instead of rows and columns; "rectilinear"
            says of files without latitudes and longitudes that their rows and columns
            are in the order of the run.
        start_datetime, end_datetime, date_ranges, timestep: override those of the data
            section for this source.
        history_len, forecast_len: equal to those of the data section; a source of
            another input than x may have another history_len.
    """

    dataset_type: str
    variables: VariablesConfig
    levels: tuple[float, ...] | None = None
    level_coord: str | None = None
    time_coord: str = "time"
    engine: str | None = None
    calendar: Calendar | None = None
    temporal_mode: Literal["exact", "persist", "cyclic", "next"] = "exact"
    input: str = MAIN_INPUT
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
    def time_step(self) -> pd.Timedelta | None:
        """The time between its fields; None if it is the time step of the model."""
        return None if self.timestep is None else duration(self.timestep)

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """The levels that are read; None if only the files define them."""
        return self.levels

    @property
    def file_templates(self) -> dict[str, str]:
        """Path templates of files that must exist before a run, by field type."""
        return {}

    @model_validator(mode="after")
    def _forces_alone(self) -> "SourceConfig":
        kinds = [kind for kind in self.variables.by_type if kind != "dynamic_forcing"]
        if self.input != MAIN_INPUT and kinds:
            raise ValueError(
                f"variables.{kinds[0]}: a source of input {self.input!r} is read at "
                "every step and never predicted; put its variables into dynamic_forcing"
            )
        return self

    @model_validator(mode="after")
    def _has_a_next_time(self) -> "SourceConfig":
        if self.temporal_mode != "next":
            return self
        day: Any = pd.Timedelta("1D")
        if self.time_step is None or day % self.time_step:
            raise ValueError(
                f"temporal_mode: next needs a timestep of the source that divides a "
                f"day, such as 3h; got {self.timestep}"
            )
        if self.input == MAIN_INPUT:
            raise ValueError(
                "temporal_mode: next is for sources of another input of the model than "
                f"{MAIN_INPUT}; name it with the key input"
            )
        return self

    @model_validator(mode="after")
    def _one_cycle(self) -> "SourceConfig":
        if self.temporal_mode == "cyclic" and self.date_ranges is not None:
            raise ValueError(
                "temporal_mode: cyclic cannot be combined with date_ranges; "
                "start_datetime and end_datetime are those of its one year"
            )
        return self
